import threading

from naiad.repository.control.locks import ModelLocks


def test_lock_blocks_only_its_name():
    claims = ModelLocks()
    order: list[str] = []
    begun = threading.Event()
    release = threading.Event()

    def work(names: set[str], mark: str) -> None:
        with claims.hold(names):
            order.append(mark)

    def hold() -> None:
        with claims.hold({"a", "b"}):
            begun.set()
            release.wait(60)
            order.append("first")

    first = threading.Thread(target=hold)
    first.start()
    begun.wait(60)
    second = threading.Thread(target=work, args=({"b", "c"}, "second"))
    second.start()
    work({"c", "d"}, "beside")
    assert not claims.wait_idle(0.0)
    release.set()
    first.join(60)
    second.join(60)
    assert order == ["beside", "first", "second"]
    assert claims.wait_idle(0.0)


def test_failure_gives_the_names_back():
    claims = ModelLocks()
    try:
        with claims.hold({"a"}):
            raise ZeroDivisionError
    except ZeroDivisionError:
        assert claims.wait_idle(0.0)
    with claims.hold({"a"}):
        assert not claims.wait_idle(0.0)
