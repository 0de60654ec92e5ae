"""When Slurm will end the job that this process is in, asked of Slurm itself."""

import os
import shutil
import subprocess
from datetime import datetime


def job_end() -> float | None:
    """Seconds since 1970 at which the job's time limit comes; None outside a job, or where Slurm does not say."""
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
