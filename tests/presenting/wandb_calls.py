"""All records of a run to W&B in one call, as the command line does it row by row."""

from fsvi_bench.presenting.wandb_runs import NOTES, WandbUploads
from fsvi_bench.running.cell import row_sha256


def by_group(records):
    """The records of each W&B run, in the order in which they come first."""
    groups = {}
    for record in records:
        groups.setdefault(row_sha256(record), []).append(record)
    return list(groups.values())


def log_records(records, mode, folder):
    """Logs every group that is not logged yet, and returns what went wrong, in lines for the user."""
    with WandbUploads(mode, folder) as uploads:
        for group in by_group(records):
            uploads.log(group)
    return [NOTES[what].format(reason, folder) for what, reason in uploads.notes.items()]
