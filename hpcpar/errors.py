"""The two kinds of failure: what was asked for cannot be done, and everything else."""


class PlanError(Exception):
    """What was asked for is infeasible; the message carries the numbers, the reason and the remedy.

    Said once, before step 1, in one line; the command exits with 2.
    """

    quiet = False  # true where another process says the same


class Aborted(Exception):
    """This rank stops because another one failed; the other one has said why."""


REQUEUE = 85  # exit code: stopped by a signal after a checkpoint; start again with --resume


class Ended(Exception):
    """The run ends before its last step, on all ranks together; the message is the reason, `code` the exit code."""

    def __init__(self, reason: str, code: int = 1):
        super().__init__(reason)
        self.code = code
