"""`fsvi-bench reproduce burt2020-study`: records to tables, tables to the page."""

from __future__ import annotations

from pathlib import Path

from fsvi_bench.errors import InputError
from fsvi_bench.papers.base import Outcome, Reproduction, Workshop
from fsvi_bench.papers.burt2020.study.claims import judge_study, verdict_table
from fsvi_bench.papers.burt2020.study.collect import collect
from fsvi_bench.papers.burt2020.study.page import write_page
from fsvi_bench.papers.burt2020.study.settings import load_study_file
from fsvi_bench.papers.burt2020.study.table import CELLS_FILE, continued, kept_words, read_tables, write_tables
from fsvi_bench.papers.places import Cells, holds_records, run_or_find
from fsvi_bench.presenting.tables import TableSpec
from fsvi_bench.running.plan import Plan, Request, make_plan
from fsvi_bench.running.prepare import require_data

PAGE = "study"  #: `study.md` and the folder `study` beside it


class Study(Reproduction):
    """The whole protocol as a page.

    A folder with records gives `study/scores.csv.gz` and `curves.csv.gz` from these; in one without, such as `docs`,
    they are read. `study.md` and its figures are made from these two files alone. Where there are both, cells without
    a record keep their lines: a study goes on elsewhere once both files are copied there, by `fsvi-bench run`
    (`--compute` would compute all of it). To publish it, copy them into `docs`, and write what came out into
    `study.md.j2` and the table's hash into `burt2020-study.yaml`.
    """

    name, shows_unfinished, takes_days = "burt2020-study", True, True

    @property
    def summary(self) -> str:
        return load_study_file().summary

    def check(self, quick: bool, data_dir: Path | None) -> None:
        require_data(self.plan(quick), data_dir)

    def make(self, workshop: Workshop) -> Outcome:
        """Raw data are needed for records, not for tables.

        Raises:
            InputError: the folder holds neither records nor tables of the study, or tables that do not go with its
                records.
        """
        file, stem = load_study_file(), workshop.stem(PAGE)
        written, cells = [], Cells()
        if workshop.compute or holds_records(workshop.root):
            plan, resources = self.plan(workshop.quick), workshop.resources
            cells = run_or_find(plan, workshop, self.name)
            found = collect(cells.records, cells.missing, workshop.root, resources.data_dir, workshop.progress)
            # What is whole needs no earlier table, and writes over a damaged one.
            if cells.missing and (stem / CELLS_FILE).is_file():
                earlier = read_tables(stem)
                if (told := kept_words(found, earlier)) is not None:
                    workshop.progress.note(f"{stem / CELLS_FILE}: {told}")
                found = continued(found, earlier)
            written = write_tables(found, stem)
        elif not (stem / CELLS_FILE).is_file():
            raise InputError(
                f"{workshop.root} holds neither records nor {stem.name}/{CELLS_FILE}; name the folder of the study's "
                "runs with --out, or let --compute compute it"
            )
        tables = read_tables(stem)
        judged = judge_study(tables.cells, file.claims)
        written += write_page(tables, judged, file, stem, workshop.quick)
        return Outcome(
            name=self.name,
            quick=workshop.quick,
            files=written,
            computed=cells.computed,
            reused=cells.reused,
            tables=(TableSpec(title="Claims", frame="claims").of({"claims": verdict_table(judged)}),),
            records=cells.records,
            missing=int(tables.cells["status"].eq("missing").sum()),
        )

    def plan(self, quick: bool) -> Plan:
        """What the study consists of."""
        file = load_study_file()
        return make_plan(Request(protocol=file.protocol, **(file.quick if quick else {})))


BURT2020_STUDY = Study()
