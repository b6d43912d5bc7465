"""TFJob manifests: a small one, and one with many features of Kubernetes and the operator."""

from __future__ import annotations

SMALL = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: dist-mnist
  namespace: vision
spec:
  tfReplicaSpecs:
    PS:
      replicas: 2
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: tensorflow
              image: registry.example/vision/mnist:1.4
              resources:
                limits: {cpu: "1", memory: 2Gi}
    Worker:
      replicas: 4
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: tensorflow
              image: registry.example/vision/mnist:1.4
              command: [python, /opt/mnist.py]
              args: ["--batch_size=64", "--epochs=10"]
              resources:
                limits: {cpu: "2", memory: 4Gi, nvidia.com/gpu: 1}
"""

LARGE = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: clicks-data}
---
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: clicks
  labels: {team: ads}
  annotations:
    weir.dev/program: train.py
    weir.dev/epochs: "3"
    weir.dev/batch: "256"
    weir.dev/max-ps: "4"
    weir.dev/max-workers: "16"
    sidecar.istio.io/inject: "false"
spec:
  successPolicy: AllWorkers
  runPolicy:
    cleanPodPolicy: None
    backoffLimit: 3
    activeDeadlineSeconds: 86400
    suspend: false
    schedulingPolicy: {minAvailable: 5, queue: research}
  tfReplicaSpecs:
    Chief:
      replicas: 1
      restartPolicy: ExitCode
      template: &pod
        metadata:
          labels: {team: ads}
        spec:
          terminationGracePeriodSeconds: 60
          serviceAccountName: clicks
          nodeSelector: {pool: train}
          tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
          securityContext: {runAsNonRoot: true, fsGroup: 1000}
          initContainers: [{name: fetch, image: curl, command: [curl, "http://data"]}]
          volumes:
            - {name: data, persistentVolumeClaim: {claimName: clicks-data}}
            - {name: logs, hostPath: {path: /var/log/train}}
            - {name: scratch, emptyDir: {}}
            - {name: cache, emptyDir: {medium: Memory}}
            - {name: token, secret: {secretName: registry}}
          containers:
            - name: tensorflow
              image: registry.example/ads/clicks:7
              imagePullPolicy: Always
              workingDir: /app
              ports: [{name: tfjob-port, containerPort: 2222}]
              env:
                - {name: DATA_DIR, value: /data}
                - {name: PYTHONUNBUFFERED, value: "1"}
              volumeMounts:
                - {name: data, mountPath: /data, readOnly: true}
                - {name: logs, mountPath: /var/log/train}
                - {name: scratch, mountPath: /tmp}
                - {name: cache, mountPath: /dev/shm}
                - {name: token, mountPath: /token}
              resources:
                requests: {cpu: 500m, memory: 1Gi}
                limits: {cpu: "2", memory: 3Gi, ephemeral-storage: 10Gi}
            - name: tensorboard
              image: tensorboard:2
    PS: {replicas: 2, template: *pod}
    Worker: {replicas: 4, template: *pod}
    Evaluator: {replicas: 1, template: *pod}
"""
