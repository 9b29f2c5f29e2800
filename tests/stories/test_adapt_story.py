"""A network learns some digits, is adapted to others with a handful of labels, and predicts."""

from cli.console import call

from dovetail.tasks.load import load_task


def test_from_training_to_predicting_new_classes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        said = call(capsys, *words, "--json")
        assert (said.code, said.err) == (0, ""), said
        return said.json

    run("train", "digits[0,1,2,3,4]", "--net", "lenet5", "--epochs", 8, "--name", "low")
    new = "digits[5,6,7]"
    adapted = run("adapt", "low", new, "--labels", 10, "--keep", "linearized", "--record", "r")
    reached = {t["how"]: t["measures"]["accuracy"] for t in adapted["trials"]}
    assert min(reached.values()) > 0.6  # chance is a third
    assert adapted["ref"] == "low-digits-5-6-7@1"

    shown = run("shelf", "show", adapted["ref"])
    assert "linearized" in str(shown)
    run("shelf", "verify")
    test = load_task(new).size("test")
    said = run("predict", adapted["ref"], new, "--most", 1000)["predictions"]
    assert {row["class"] for row in said} <= {"5", "6", "7"}
    assert len(said) >= test

    page = run("report", "r", "-o", "page.html")
    assert len(page["records"]) == 1
    assert "Adapting low to digits[5,6,7]" in (tmp_path / "page.html").read_text()
