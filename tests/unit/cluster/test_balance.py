from naiad.cluster.connection_passing import Balance


def balance(slots: int = 2, ports: int = 2) -> Balance:
    made = Balance(ports)
    for slot in range(slots):
        made.add(slot)
    return made


def pass_connection(made: Balance, port: int, count: int = 1) -> list[int]:
    given = []
    for _ in range(count):
        slot = made.ranked(port)[0]
        made.passed(slot, port)
        given.append(slot)
    return given


def test_connections_go_round() -> None:
    assert pass_connection(balance(3), 0, 7) == [0, 1, 2, 0, 1, 2, 0]


def test_round_robin_without_connections() -> None:
    made = balance()
    given = []
    for _ in range(4):
        given += pass_connection(made, 0)
        made.closed(given[-1], [1, 0])
    assert given == [0, 1, 0, 1]


def test_process_with_fewest_connections_is_next() -> None:
    made = balance()
    pass_connection(made, 0, 6)
    made.closed(1, [2, 0])
    assert pass_connection(made, 0, 3) == [1, 1, 0]


def test_ports_are_balanced_separately_with_ties_by_sum() -> None:
    made = balance()
    assert pass_connection(made, 0) == [0]
    assert pass_connection(made, 1) == [1]
    assert pass_connection(made, 1) == [0]


def test_others_follow_in_order() -> None:
    made = balance(3)
    pass_connection(made, 0, 4)
    assert made.ranked(0) == [1, 2, 0]


def test_ended_process_restarts_with_zero_connections() -> None:
    made = balance()
    pass_connection(made, 0, 4)
    made.remove(1)
    assert made.ranked(0) == [0]
    made.closed(1, [1, 0])
    made.add(1)
    assert pass_connection(made, 0, 2) == [1, 1]


def test_ranking_without_processes_is_empty() -> None:
    made = balance(1)
    made.remove(0)
    made.remove(0)
    assert made.ranked(0) == []
