"""The tables of verdicts on the study's page: in short, with all numbers, and what has no split to judge by yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fsvi_bench.papers.burt2020.study.claims import Judged, Outcome
from fsvi_bench.papers.burt2020.study.summary import jitter_words, number
from fsvi_bench.presenting.tables import Table

ALWAYS: tuple[Outcome, ...] = ("held", "did not hold", "undecided")
IF_ANY: tuple[Outcome, ...] = ("not judged", "incomplete")


def verdict_table(judged: Sequence[Judged]) -> Table:
    """Claims against where they held, with how many splits are by themselves on the claimed side, of how many.

    Each data set counts once, without jitter; where it is all there with jitter too, that is told if the outcome is
    another.
    What has no split yet stands in `unseen_words` alone.
    """
    seen = [each for each in judged if not _is_unseen(each)]
    plain = {(each.claim, each.dataset): each for each in seen if not each.kl_jitter}
    outcomes = (*ALWAYS, *(outcome for outcome in IF_ANY if any(each.outcome == outcome for each in plain.values())))
    whole = {key for key, each in plain.items() if each.outcome != "incomplete"}
    jittered = [each for each in seen if each.kl_jitter and each.outcome != "incomplete"]
    rows = []
    for claim in dict.fromkeys(each.claim for each in judged):
        own = [each for each in plain.values() if each.claim == claim]
        places = {outcome: ", ".join(_place(each) for each in own if each.outcome == outcome) for outcome in outcomes}
        decided = sum(each.verdict is not None for each in own)
        held = sum(each.outcome == "held" for each in own)
        pairs = [
            (each, plain[key]) for each in jittered if (key := (claim, each.dataset)) in whole and each.claim == claim
        ]
        moved = [f"{_place(each)}: {each.outcome}" for each, without in pairs if each.outcome != without.outcome]
        told = [each or "–" for each in (*places.values(), *([", ".join(moved)] if jittered else []))]
        rows.append((claim.says, f"{held} of {decided}" if decided else "–", *told))
    last = ("another outcome with jitter",) if jittered else ()
    return Table(title="Claims", columns=("claim", "held, of data sets", *outcomes, *last), rows=tuple(rows))


def _place(each: Judged) -> str:
    jitter = f" ({jitter_words(each.kl_jitter)})" if each.kl_jitter else ""
    planned = f" of {each.planned}" if each.outcome == "incomplete" else ""
    return f"{each.dataset}{jitter} {each.agreeing}/{each.splits}{planned}"


def judgement_table(judged: Sequence[Judged]) -> Table:
    """Every verdict with its numbers, and what is to become one."""
    rows = []
    for each in judged:
        if _is_unseen(each):
            continue
        v = each.verdict
        interval = "–" if v is None else f"{number(v.value)} [{number(v.low)}, {number(v.high)}]"
        told = (f"{each.splits} of {each.planned}", f"{each.agreeing} of {each.splits}", each.outcome)
        claimed = f"{each.claim.side} {each.claim.threshold:g}"
        rows.append((each.claim.statistic, each.dataset, jitter_words(each.kl_jitter), interval, claimed, *told))
    columns = ("statistic", "data set", "jitter", "mean [95%]", "claimed", "splits", "on its side", "outcome")
    return Table(title="Claims, with numbers", columns=columns, rows=tuple(rows))


def unseen_words(judged: Sequence[Judged]) -> list[str]:
    """How many verdicts have no split yet, by jitter where some have one; data sets that lack the same in one line."""
    alike: dict[str, list[str]] = {}
    for dataset in dict.fromkeys(each.dataset for each in judged):
        here = [each for each in judged if each.dataset == dataset]
        unseen = [each for each in here if _is_unseen(each)]
        if unseen:
            words = "all" if len(unseen) == len(here) else _by_jitter(unseen)
            alike.setdefault(words, []).append(dataset)
    return [f"{', '.join(datasets)}: {words}" for words, datasets in alike.items()]


def _by_jitter(unseen: Sequence[Judged]) -> str:
    counts = Counter(each.kl_jitter or 0.0 for each in unseen)
    return ", ".join(
        f"{count} {'with jitter ' + jitter_words(jitter) if jitter else 'without jitter'}"
        for jitter, count in sorted(counts.items())
    )


def _is_unseen(each: Judged) -> bool:
    return not each.splits and each.outcome == "incomplete"
