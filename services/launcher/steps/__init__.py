"""The steps of the launcher's decision, one module for what changes together.

`generations.py`: which generation is prepared next, its next step, and why it is abandoned.
`task_reports.py`: which tasks have started, have ended, or are about to leave.
`pod_actions.py`: which objects are created, resized and deleted.
"""
