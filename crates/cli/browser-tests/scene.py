"""A busy afternoon: agents that hold files, wait for each other, time out and die."""

import threading
import time


FILES = ["FILE:/src/main.rs", "FILE:/src/lib.rs", "FILE:/src/parser.rs"]
WAITING = [
    ("formatter", FILES[0], "format the tree"), ("linter", FILES[0], "fix lints"), ("tests", FILES[0], "run the tests of main"),
    ("spelling", FILES[1], "correct the comments"), ("bench", FILES[2], "measure")]


def hold_and_wait(operator, agents, leases):
    """By wait-die an attempt waits only for a younger one: so those who wait have tried before the holders came."""
    resources = [{"kind": "FILE", "name": name.removeprefix("FILE:")} for name in FILES]
    first = operator.call("POST", "/v1/acquire", {"resources": resources, "ttl_seconds": 60})
    attempts = {agent: agents.manifest(agent, [("MUTATES", name)], reason=reason)["attempt_id"] for agent, name, reason in WAITING}
    operator.release(first)
    for agent, name in zip(["refactor", "tests", "docs"], FILES):
        leases[agent] = agents.manifest(agent, [("MUTATES", name)], reason=f"{agent} pass")
        assert leases[agent]["verdict"] == "GRANTED", leases[agent]
    for agent, name, reason in WAITING:
        agents.waits(lambda agent=agent, name=name, reason=reason: agents.manifest(
            agent, [("MUTATES", name)], attempt_id=attempts[agent], wait_ms=60000, reason=reason))
        time.sleep(0.05)


def play(world):
    """Returns the leases that matter later, by name."""
    operator = world.client()
    worker = world.client("ci-runner", "default:rwp", "orders:rwp")
    agents = world.client("agent-pool", "default:rw", "code:rw")
    leases = {}
    for name in ["billing/invoices", "billing/refunds", "deploy/staging", "orders/2026-11", "reports/weekly", "schema/migrations"]:
        lease = worker.acquire(name, owner=name.split("/")[0])
        worker.commit(lease, {"cursor": 12345678901234567890, "owner": name, "steps": ["fetch", "transform", "load"], "done": False, "ratio": 0.25})
        leases[name] = lease
    for name in ["billing/refunds", "reports/weekly"]:
        worker.release(leases[name])
    for round_number in range(4):
        lease = worker.acquire("deploy/production", owner="rollout")
        worker.commit(lease, {"release": f"v1.{round_number}", "hosts": ["web-1", "web-2"]})
        time.sleep(0.2)
        worker.release(lease)
    operator.call("POST", "/v1/acquire", {"key": "deploy/production", "ttl_ms": 300})
    time.sleep(0.6)
    leases["deploy/production"] = worker.acquire("deploy/production", owner="rollout")
    worker.commit(leases["deploy/production"], {"release": "v2.0", "hosts": ["web-1", "web-2", "web-3"]})
    for index in range(3):
        deployer = world.client(f"deployer-{index}", "default:rw")
        deployer.waits(lambda deployer=deployer: deployer.acquire("deploy/production", block_seconds=60))
        time.sleep(0.1)
    hold_and_wait(operator, agents, leases)
    for _ in range(2):
        agents.manifest("hothead", [("MUTATES", FILES[0])], reason="just once")
    time.sleep(0.5)
    operator.call("PUT", "/v1/quotas", {"namespace": "default", "identity": "ci-runner", "max_leases": 500, "acquires_per_second": 200})
    operator.call("POST", "/v1/pause", {"identity": "intern", "paused": True})
    return leases


def take_turns(world, key, seconds):
    """Three clients hold a key in turn, in the background; an operator takes it from one of them."""
    end = time.monotonic() + seconds

    def turns(number):
        client = world.client(f"deployer-{number}", "default:rw")
        while time.monotonic() < end:
            lease = client.acquire(key, block_seconds=30)
            if "lease_id" not in lease:
                continue
            for step in range(2):
                client.commit(lease, {"release": f"v3.{number}", "step": step, "hosts": ["web-1", "web-2"]})
                time.sleep(1.2 + number)
            if number == 2 and time.monotonic() > end - seconds / 2:
                operator = world.client()
                operator.call("POST", f"/v1/leases/{lease['public_id']}/revoke")
                time.sleep(2)
                operator.call("POST", f"/v1/leases/{lease['public_id']}/reclaim")
            else:
                client.release(lease)

    for number in range(3):
        threading.Thread(target=turns, args=(number,), daemon=True).start()
        time.sleep(0.3)
