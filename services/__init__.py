"""Weir: elastic parameter-server training, told by its events. What the system does, in the order
it happens.

                    JobRequested, CancelRequested, ChangeRequested, ...
     a person  --------------------------------------->+
        ^  JobAccepted / JobRejected, JobFinished, ... |
        +<---------------------------------------------|
                                                       |
     monitor   ---- CapacityChanged ------------------>|   allocator    WHAT SHOULD RUN
     WHAT IS FREE                                      |       |
        ^                                              |       |  AllocationDecided
        | nodes, pods                                  |       v
     Kubernetes <---- pods, services ----------------- | - launcher     MAKE IT SO
        |                                              |    |      ^
        | runs                                         |    |      |  TaskReady, GenerationPrepared
        v                                              |    v      |
     trainer   <--- ClusterSpecPublished, -------------|----+      |
     IT HAPPENS     HandOverOrdered                    |           |
        |                                              |           |
        +---- CheckpointSaved, TrainingResumed, ------>+-----------+
              ProgressReported, JobFinished      NATS JetStream

Every arrow but Kubernetes' is a message of `shared/messages.py` on a stream, and anybody may
listen. A resize, for example: a node has room (`CapacityChanged`), the allocator wants generation 2
(`AllocationDecided`), the launcher makes its pods, which say where they stand (`TaskReady`); it
tells all who is who (`ClusterSpecPublished`), they build beside the running generation
(`GenerationPrepared`), and on `HandOverOrdered` generation 1 drains and saves (`CheckpointSaved`),
and generation 2 restores and goes on (`TrainingResumed`).

monitor, allocator, launcher and trainer are the services; `local` is a Kubernetes of one machine;
`cli` is what a person types, `board` what people look at, `page` shows that to browsers, and
`setup` makes the streams. Read one service and you have read four: `service.py` hears, asks a pure
function, and says.
"""
