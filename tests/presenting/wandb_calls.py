"""All records of a run to W&B in one call, as the command line does it row by row."""

from fsvi_bench.presenting.wandb_content import group_key
from fsvi_bench.presenting.wandb_log import WandbLogger


def by_group(records):
    """The records of each W&B run, in the order in which they come first."""
    groups = {}
    for record in records:
        groups.setdefault(group_key(record), []).append(record)
    return list(groups.values())


def log_records(records, mode, folder, load_traces):
    """Logs every group that is not logged yet, and returns what went wrong, in lines for the user."""
    with WandbLogger(mode, folder) as logger:
        for group in by_group(records):
            logger.log(group, load_traces)
    return logger.notes
