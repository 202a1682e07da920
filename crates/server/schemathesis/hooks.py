"""Every other valid call under a lease is made under one that is really held: credentials cannot be made up."""

import itertools
import os

import requests
import schemathesis

URL = os.environ["LOCKD_URL"]
ASK = requests.Session()

# A lease for each call to succeed with.
LEASES = {
    "activate": {"reserve": True},
    "rebind": {"ttl_ms": 1, "on_expiry": {"hold_ms": 60000}},
    **{name: {} for name in ("keepalive", "release", "touch", "lease", "revoke_lease", "reclaim_lease", "describe")},
    **{name + dash: {} for name in ("read_state", "get_state", "update_state", "remove_state") for dash in ("", "_dashed")},
}
NUMBERS = {call: itertools.count() for call in LEASES}


def ask(path, body=None, **headers):
    answer = ASK.post(URL + path, json=body, headers=headers, timeout=10)
    assert answer.ok, answer.text
    return answer.json()


@schemathesis.hook
def before_call(context, case, kwargs):
    call = case.operation.definition.raw["operationId"]
    if call == "manifest" and case.meta and case.meta.generation.mode.is_positive:
        # One that was not given out is refused, and cannot be made up either.
        case.body.pop("attempt_id", None)
    if call not in LEASES or not case.meta or not case.meta.generation.mode.is_positive:
        return
    # Counted for each call by itself: good and bad requests come in turns, and so might those that are skipped.
    number = next(NUMBERS[call])
    if number % 2:
        return
    key = f"{call}-{number}"
    lease = ask("/v1/acquire", {"key": key, **LEASES[call]})
    if "id" in case.path_parameters:
        case.path_parameters["id"] = lease["public_id"]
    if isinstance(case.body, dict) and "lease_id" in case.body:
        case.body["lease_id"] = lease["lease_id"]
        case.body.pop("key", None)
    if "state" in call:
        case.query["key"] = key
        case.headers["x-lease-id"] = lease["lease_id"]
        if number % 4 == 0 and "update" not in call:
            ask(f"/v1/update_state?key={key}", {"number": number}, **{"x-lease-id": lease["lease_id"]})
    if call == "describe":
        case.query["key"] = key
        case.query.pop("namespace", None)
    if call == "rebind":
        while ASK.get(f"{URL}/v1/leases/{lease['public_id']}", timeout=10).json()["state"] == "active":
            pass
    if call == "reclaim_lease":
        ask(f"/v1/leases/{lease['public_id']}/revoke")


@schemathesis.hook
def after_call(context, case, response):
    """What stops grants is undone at once: nothing after it would be granted."""
    call = case.operation.definition.raw["operationId"]
    if call not in ("set_quota", "pause") or response.status_code != 200:
        return
    whom = {name: case.body.get(name) for name in ("namespace", "identity", "agent_id") if name in case.body}
    if call == "pause":
        ask("/v1/pause", {**whom, "paused": False})
    else:
        assert ASK.put(URL + "/v1/quotas", json=whom, timeout=10).ok
