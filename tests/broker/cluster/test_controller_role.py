"""The controller's work begins and ends with the controllership, and goes on in a stop that brings it back."""

from __future__ import annotations

from headrace.broker.cluster.controller_role import ControllerRole
from tests.broker.cluster.test_driver_on_another_log import ME, OTHER, started


class Work:
    """A `ControllerWork` that keeps whether it is under way."""

    def __init__(self) -> None:
        self._begun = False

    def is_under_way(self) -> bool:
        return self._begun

    def begin(self) -> None:
        assert not self._begun, "it was ended before"
        self._begun = True

    def end(self) -> None:
        self._begun = False


async def test_work_begins_once_both_the_role_is_started_and_this_node_is_the_controller() -> None:
    log, driver = await started()
    work = Work()
    role = ControllerRole(driver, [work])
    log.give(ME, 1)
    assert not work.is_under_way()
    role.start()
    assert work.is_under_way()
    log.give(OTHER, 2)
    assert not work.is_under_way()
    log.give(ME, 3)
    assert work.is_under_way()
    await driver.stop()
    assert not work.is_under_way()


async def test_a_node_that_is_elected_while_it_stops_does_the_work_until_its_metadata_stops() -> None:
    log, driver = await started()
    work = Work()
    role = ControllerRole(driver, [work])
    role.start()
    log.give(ME, 1)
    role.stop()
    assert not work.is_under_way()
    log.give(OTHER, 2)
    log.give(ME, 3)
    assert work.is_under_way(), "otherwise nobody would fence or elect meanwhile"
    await driver.stop()
    assert not work.is_under_way()
