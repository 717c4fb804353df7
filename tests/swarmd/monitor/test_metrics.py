import os
import socket

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sample_status import sample_status

from swarmd.errors import NetworkError
from swarmd.monitor.metrics import MetricsServer, make_registry
from swarmd.monitor.status import CanaryStatus, ProcessStatus, RewardStatus, WorkerStatus


async def scrape(status):
    async with MetricsServer("127.0.0.1:0", make_registry(status)) as server:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{server.port}/metrics") as response:
                assert response.status == 200
                text = await response.text()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_scrape_shows_the_status_of_that_moment():
    rounds = iter([41, 42])

    def status():
        return sample_status(round=next(rounds))

    assert (await scrape(status))[("swarmd_round",)] == 41
    assert (await scrape(status))[("swarmd_round",)] == 42


async def test_reasons_and_workers_become_labels():
    workers = {"trainer": WorkerStatus(pid=os.getpid(), state="ready", restarts=2, idle_share=0.25)}
    samples = await scrape(lambda: sample_status(workers=workers))
    assert samples[("swarmd_rejected_groups_total", "no_signal")] == 41
    assert samples[("swarmd_worker_restarts_total", "trainer")] == 2
    assert samples[("swarmd_worker_ready", "trainer")] == 1
    assert samples[("swarmd_worker_idle_share", "trainer")] == 0.25
    assert samples[("swarmd_loop_lag_max_seconds",)] == pytest.approx(0.0125)


async def test_how_far_off_policy_the_last_step_was_is_scraped():
    samples = await scrape(sample_status)
    assert samples[("swarmd_sampler_kl_nats",)] == 0.0021
    assert samples[("swarmd_sampler_gap_nats",)] == 2e-6
    assert samples[("swarmd_effective_share",)] == 0.97
    assert samples[("swarmd_clipped_share",)] == 0.0125
    assert [samples[("swarmd_lag_groups", lag)] for lag in "012"] == [3, 0, 1]
    assert ("swarmd_dropped_share",) not in samples


async def test_the_canary_is_scraped_and_an_alarm_needs_one_of_its_metrics():
    canary = CanaryStatus(state="bad", version=7, difference=0.9, tolerance=1e-3, checked_at=1.0, failures=2)
    samples = await scrape(lambda: sample_status(canary=canary))
    assert samples[("swarmd_canary_good",)] == 0
    assert samples[("swarmd_canary_version",)] == 7
    assert samples[("swarmd_canary_difference_nats",)] == 0.9
    assert samples[("swarmd_canary_tolerance_nats",)] == 1e-3
    assert samples[("swarmd_canary_failures_total",)] == 2
    good = CanaryStatus(state="good", version=7, difference=0.0, tolerance=1e-3, checked_at=1.0)
    assert (await scrape(lambda: sample_status(canary=good)))[("swarmd_canary_good",)] == 1
    assert ("swarmd_canary_good",) not in await scrape(sample_status)


async def test_what_is_not_known_is_left_out_and_not_zero():
    samples = await scrape(lambda: sample_status(reward=RewardStatus(local_mean=0.5)))
    assert samples[("swarmd_reward_own",)] == 0.5
    assert ("swarmd_reward_eval",) not in samples


async def test_memory_files_and_threads_of_each_process_are_scraped():
    processes = (ProcessStatus("daemon", 1, 200, 40, 9), ProcessStatus("verifier-1/python", 2, 100, None, 1))
    samples = await scrape(lambda: sample_status(processes=processes))
    assert samples[("swarmd_process_resident_bytes", "daemon")] == 200
    assert samples[("swarmd_process_open_files", "daemon")] == 40
    assert samples[("swarmd_process_threads", "daemon")] == 9
    assert samples[("swarmd_process_resident_bytes", "verifier-1/python")] == 100
    assert ("swarmd_process_open_files", "verifier-1/python") not in samples


async def test_a_taken_port_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(NetworkError, match=r"metrics_listen"):
            async with MetricsServer(listen, make_registry(sample_status)):
                pass
