import json

import pytest

from inrank.events import EventLog, RankEvent


def event(step=3, **changes):
    return RankEvent(step=step, layer="a.b", old_rank=2, new_rank=4, active=8, ratio=0.93, wanted=5, **changes)


def test_a_log_gives_back_what_was_written(tmp_path):
    log = EventLog(tmp_path / "deep" / "events.jsonl")
    assert log.read() == []
    written = [event(), event(7, kind="saturated", null_rank=3)]
    for each in written:
        log.append(each)
    assert log.read() == written
    first = json.loads(log.path.read_text().splitlines()[0])
    assert first == {
        "step": 3,
        "layer": "a.b",
        "old_rank": 2,
        "new_rank": 4,
        "active": 8,
        "ratio": 0.93,
        "wanted": 5,
        "null_rank": None,
        "kind": "grow",
    }
    log.rewrite(written[:1])
    assert log.read() == written[:1]


def test_a_torn_last_line_is_not_read_but_other_damage_is_an_error(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.append(event())
    with log.path.open("a") as file:
        file.write('{"step": 9, "lay')
    assert log.read() == [event()]
    log.path.write_text('{"step": 9}\n' + event().to_json() + "\n")
    with pytest.raises(ValueError, match="line 1 is not a rank event"):
        log.read()
