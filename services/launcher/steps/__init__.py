"""The steps of the launcher's decision, one module for what changes together.

`generations.py`: the generation that is prepared next, its next step, and reasons to abandon it.
`task_reports.py`: the tasks that have started, have ended, or are about to leave.
`pod_actions.py`: the objects that are created, resized and deleted.
"""
