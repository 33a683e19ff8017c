import io

from rich.console import Console

from jaxicml.harness import progress
from jaxicml.types import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_silence_without_a_terminal():
    stream = io.StringIO()
    log = progress.for_terminal(stream)
    assert isinstance(log, Progress)
    with log:
        assert list(log.track(iter("abc"), "letters")) == ["a", "b", "c"]
        log.note("unseen")
    assert stream.getvalue() == ""


def test_bars_on_a_terminal():
    stream = Terminal()
    log = progress.for_terminal(stream)
    assert isinstance(log, progress.Bars)
    assert isinstance(log, Progress)
    with log:
        for _ in log.track(range(2), "outer [x]"):
            assert list(log.track(iter("ab"), "inner", total=2)) == ["a", "b"]
            log.note("a line [red]in brackets")
    assert "a line [red]in brackets" in stream.getvalue()
    assert "outer [x]" in stream.getvalue()


def test_a_bar_leaves_when_its_loop_is_broken_off():
    bars = progress.Bars(Console(file=io.StringIO()))
    steps = bars.track(range(5), "steps")
    assert next(steps) == 0
    assert next(steps) == 1
    (task,) = bars._bars.tasks
    assert (task.completed, task.total) == (1, 5)
    steps.close()
    assert bars._bars.tasks == []
