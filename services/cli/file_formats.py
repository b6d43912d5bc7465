"""The files and lines that `weir simulate` and `weir decide` read: a page of help each, with
examples.
"""

from __future__ import annotations

JOBS = "job,submitted_s,model,samples,global_batch,ps,workers,max_workers\na,0,net,50000,64,1,2,8\n"
SPEEDS = "model,ps,workers,global_batch,samples_per_second\nnet,1,1,64,100.5\nnet,1,8,64,530.7\n"
LOSSES = "model,samples,loss\nnet,0,2.3\nnet,50000,0.4\n"
CLUSTER = """\
nodes: [{name: node, count: 3, cpu: 6, memory_gib: 16, gpu: 0}]
tenants: [{node: node-2, cpu: 6, from_s: 0, to_s: 120}]
quotas: {team-a: {cpu: 4, memory_gib: 8}}
"""
LINE = """\
{"now": 60, "nodes": [{"name": "n1", "cpu": 4, "memory_gib": 16, "gpu": 0}],
 "jobs": [{"job": "a", "submitted_s": 0, "pause_s": 1.2,
  "request": {"ps": 1, "workers": {"start": 1, "min": 1, "max": 3},
   "batch": 64, "resources": {"worker": {"cpu": 1, "memory_gib": 2}}},
  "current": {"chief": "n1", "ps": ["n1"], "workers": ["n1"], "batch": 64,
   "since_s": 0},
  "observed": [{"ps": 1, "workers": 1, "samples_per_second": 90}],
  "progress": {"samples": 5e3, "total_samples": 5e4, "loss": [[5e3, 1.9]]}}]}
"""


def _format_page(example: str) -> str:
    return "".join(f"  {line}\n" for line in example.splitlines())


SIMULATE = f"""\
jobs (samples: of all epochs; global_batch: of all workers together)
{_format_page(JOBS)}  or also: min_ps, max_ps, min_workers, batch_min, batch_max, ps_cpu,
  worker_cpu, worker_gpu, device_batch_max, priority, namespace
surfaces (ps 0, or gpus in place of ps and workers: devices side by side)
{_format_page(SPEEDS)}cluster (as of `weir up`; tenants and quotas may be left out)
{_format_page(CLUSTER)}Times are seconds from the beginning, cpu is cores; more columns are allowed.
"""
DECIDE = f"""\
In, on one line. Required: now, each name, each job and its request; cpu is
cores, *_s are seconds. current null: no task runs; absent: unchanged since
the last line or answer. since_s absent: since this line, or since the
answer that gave it. resources: a ps or worker left out has the usual ones;
a chief left out needs none.
{LINE}Out, on one line; no workers: it waits. gain: seconds saved, for cost_s:
{{"decisions": [{{"job": "a", "chief": "n1", "ps": ["n1"], "workers": ["n1"],
  "batch": 64, "reason": "...", "gain": 9, "cost_s": 1}}], "decision_ms": 2}}
A line that cannot be used: {{"line": 3, "errors": ["..."]}}; the next are
answered all the same, and the exit code is 0.
"""
FIELDS = """\
Unknown values may be left out, or be null.
nodes      free: the free cpu, memory_gib and gpu; absent: the rest beside
           our tasks. kind: a label. labels, taints: as in Kubernetes, for
           node_selector, affinity and tolerations of a request.
request    as weir submit takes it, but ps, workers and batch may be plain
           numbers. program: {"name": "a.py", "digest": "sha256-..."}; jobs
           of one digest share their observations, finished jobs included.
           A batch above device_batch_max a device takes several passes for
           one update.
current    generation: the newest one so far.
observed   batch; nodes: their number, or their names; samples_per_second, or
           step_s of a batch. One for each size that ran. sync_s: not used.
progress   samples, of total_samples: examples, counted as those of the first
           batch (batch.start). loss: pairs of samples and loss.
           gradient_noise: its scale, in examples. profile: the model's
           parameters, bytes, variables, flops_per_sample.
pause_s    the measured pause of a change.
quotas     {"team-a": {"cpu": 8, "memory_gib": 32, "gpu": 1}} by namespace.
A job that is missing from a line is over. A decision frees capacity once
current shows it: repeat the line, with the same now, until nothing changes."""
