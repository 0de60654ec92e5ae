"""The functions of the rules, without Snakemake: inputs of jobs, what is forced, judged and refused."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from paper import config, jobs, plan, results, runs, workflow
from paper.cli import PaperError
from paper.workflow import Workflow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def flow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda preset="tiny", **over: Workflow(ROOT, preset, over)


def batch_of(flow, experiment="mlp_depth_gelu"):
    return next(batch for batch in flow.plan.batches.values() if batch.name.startswith(f"{experiment}-"))


def write(flow, batch):
    """Results for all runs of a batch."""
    for spec in flow.plan.runs_of(batch.stage, batch.name):
        path = runs.result_path(Path("results"), spec)
        results.write_result(path, pd.DataFrame({"a": [1]}), spec, {"seconds": 1.0})


def test_a_job_reads_data_start_weights_and_rescalings_whether_or_not_its_runs_exist(flow):
    one = flow()
    batch = batch_of(one)
    starts = [one.starts("mlp_gelu", rescaled) for rescaled in (False, True)]
    expected = [f"results/tiny/{stage}/mlp_gelu.json" for stage in ("init", "rescale")]
    assert [re.sub("-[0-9a-f]{12}", "", name) for name in starts] == expected
    expected = ["results/data/generated.pt", *starts]
    assert one.inputs("train", batch.name) == expected
    assert one.work("train", batch.name, "") == "6 of 6 runs are computed"
    write(one, batch)
    assert one.inputs("train", batch.name) == expected
    assert one.work("train", batch.name, "") == "all 6 runs exist"
    assert one.work("train", batch.name, "--again 1") == "6 of 6 runs are computed"
    assert flow("paper").inputs("measure", batch_of(flow("paper"), "timing").name) == ["results/data/cifar10.pt"]


def test_training_without_a_gpu_is_refused_with_its_cost(flow):
    one = flow("paper")
    batch = batch_of(one)
    wildcards, params = SimpleNamespace(batch=batch.name), SimpleNamespace(again="")
    job = SimpleNamespace(rule=SimpleNamespace(name="train"), wildcards=wildcards, params=params)
    said = r"210 runs are to be trained \(mlp_2x500_gelu, .*no GPU here.*on an H200.*on a CPU core.*device=cpu.*preset="
    with pytest.raises(PaperError, match=f"(?s){said}"):
        one.refuse([job])
    write(one, batch)
    one.refuse([job])
    job.params.again = "--again 1"
    with pytest.raises(PaperError, match="210 runs are to be trained"):
        one.refuse([job])


def test_forced_jobs_are_those_of_the_command_line_also_on_a_cluster(monkeypatch):
    monkeypatch.setenv(workflow.FORCED, "{}")

    def snakemake(main=True, **given):
        chosen = {"forceall": False, "forcerun": [], "forcetargets": False, "targets": ["a.json"], **given}
        return SimpleNamespace(is_main_process=main, dag_settings=SimpleNamespace(**chosen))

    for forced in ({"forceall": True}, {"forcerun": ["my_train"]}, {"forcerun": ["a.json"]}, {"forcetargets": True}):
        option = workflow.again(snakemake(**forced), "train", ["a.json"])
        assert option.startswith("--again 1")
        assert workflow.again(snakemake(main=False), "train", ["a.json"]) == option, "the same time in every job"
        others = workflow.again(snakemake(main=False), "measure", ["b.json"])
        assert others == (option if "forceall" in forced else "")
    assert workflow.again(snakemake(forcerun=["init"]), "train", ["a.json"]) == ""
    assert workflow.again(snakemake(main=False), "train", ["a.json"]) == ""


def test_verdicts_are_given_at_the_papers_own_settings_alone(flow, monkeypatch):
    papers = flow("paper")
    monkeypatch.setattr(Workflow, "_papers", papers._papers)  # planned once, not for each
    assert not flow().judged("toy")
    assert papers.judged("toy")
    assert flow("preview").judged("architectures")  # not smaller there
    changed = {"experiments": {"toy": {**papers.config.plain["toy"], "steps": 7}}}
    assert not any(flow(preset, **changed).judged("toy") for preset in ("tiny", "paper"))
    fewer = flow("paper", sweeps=3)
    assert [fewer.judged(name) for name in ("mlp_depth", "toy")] == [False, True]
    assert flow("paper", device="cpu", figures={"dpi": 100}).judged("mlp_depth")


def test_what_snakemake_merged_is_what_is_used(flow):
    base = config.load(ROOT / "config.yaml")
    for given, explicit, over in (
        ({}, {}, {}),
        (base, {}, {}),
        ({**base, "preset": "preview"}, {"preset": "preview"}, {}),
        ({**base, "preset": "tiny", "sweeps": 7}, {"preset": "tiny"}, {"sweeps": 7}),
        ({**base, "preset": "tiny"}, {"preset": "tiny", "device": "auto"}, {"device": "auto"}),
        ({"preset": "tiny", "experiments": {"toy": {"lr": 0.5}}}, {}, {"experiments": {"toy": {"lr": 0.5}}}),
    ):
        found = Workflow.of(ROOT, given, explicit)
        assert found.preset == given.get("preset", "paper")
        assert json.loads(found.over) == over
    with pytest.raises(PaperError, match="preset: expected one of paper, preview, tiny, got 0"):
        Workflow.of(ROOT, {**base, "preset": 0}, {"preset": 0})


@pytest.mark.parametrize("path", ["results/tiny/train/a.json", "results/tiny/claims.json", "figures/tiny/toy.pdf"])
def test_a_folder_in_place_of_a_file_is_refused_and_a_file_in_place_of_a_folder(flow, path, monkeypatch):
    Path(path).mkdir(parents=True)
    with pytest.raises(PaperError, match=f"{path}: expected a file or nothing, got a folder. Move it elsewhere, or"):
        Workflow.of(ROOT, {"preset": "tiny"}, {})
    Path(path).rmdir()
    monkeypatch.setattr(os, "access", lambda _, mode: mode == os.R_OK)  # recorded runs may be protected
    Workflow.of(ROOT, {"preset": "tiny"}, {})
    folder = Path(path).parent
    folder.rmdir()
    folder.touch()
    with pytest.raises(PaperError, match=f"cannot write {folder}: {folder} is not a folder that may be written."):
        Workflow.of(ROOT, {"preset": "tiny"}, {})


def test_jobs_of_a_machine_take_one_gpu_each(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs.tempfile, "gettempdir", lambda: str(tmp_path))
    taken = []
    for _ in range(4):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
        jobs.claim_gpu()
        taken.append(jobs.os.environ["CUDA_VISIBLE_DEVICES"])
    assert taken[:3] == ["0", "1", "2"]
    assert taken[3] in ("0", "1", "2")
    for given in ("", "5"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        jobs.claim_gpu()
        assert jobs.os.environ["CUDA_VISIBLE_DEVICES"] == given
    for lock in jobs._held:
        lock.release()
    jobs._held.clear()


def test_indices_are_written_for_complete_batches_and_others_deleted(flow):
    one, folder = flow(), Path("results")
    batch = batch_of(one)
    write(one, batch)
    stale = plan.index_path(folder, "tiny", batch).with_name("gone-0123456789ab.json")
    stale.write_text("{}")
    missing = plan.write_indices(folder, one.plan)
    assert set(missing) == set(one.plan.specs) - set(batch.keys)
    assert [path.stem for path in Path("results/tiny/train").glob("*.json")] == [batch.name]
    assert set(json.loads(plan.index_path(folder, "tiny", batch).read_text())) == set(batch.keys)
