"""The end of the Slurm job that this process runs in."""

import os
import shutil
import subprocess
from datetime import datetime


def job_end() -> float | None:
    """The job's time limit in seconds since the epoch; None outside a job, or if Slurm reports none."""
    job, squeue = os.environ.get("SLURM_JOB_ID"), shutil.which("squeue")
    if not job or squeue is None:
        return None
    command = [squeue, "--noheader", f"--jobs={job}", "--format=%e"]
    given = {**os.environ, "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60)  # noqa: S603 - no shell
        return datetime.fromisoformat(done.stdout.strip()).timestamp()
    except (OSError, subprocess.SubprocessError, ValueError):  # no answer, or no limit
        return None
