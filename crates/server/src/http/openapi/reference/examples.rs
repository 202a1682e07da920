//! For each call of the reference page: which clients may use it, and a curl command with the status of its response.
//!
//! The page lists the calls in this order. Its commands are run in this order against a real server, in one shell, so an
//! example can use variables and files of the examples before it.

/// One call of the page.
#[derive(Clone, Copy)]
pub(super) struct Example {
    /// The call's operation id.
    pub(super) call: &'static str,
    pub(super) who: &'static str,
    /// Status of the last command; the commands before it return 200.
    pub(super) status: u16,
    /// Shell text. `@/path` stands for curl with the identity file and the base URL; `@"/path"` is the same, quoted.
    pub(super) shell: &'static str,
    /// A rule that the schemas cannot express.
    pub(super) note: &'static str,
}

/// Calls that belong together.
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) examples: &'static [Example],
}

const HOLDER: &str = "the holder: the identity that acquired the lease, with its `lease_id`";
const READ: &str = "identities with the right `r` in the namespace";
const READ_SOME: &str =
    "all clients; the response covers the namespaces in which the identity has the right `r`";
const WRITE: &str = "identities with the right `w` in the namespace";
const BULK: &str =
    "the holder of the leases; with `agent_id`, the identity of the agent, which needs the right `w`";
const OPERATOR: &str = "identities with the role `operator`";
const ALL: &str = "all clients";

const fn example(call: &'static str, who: &'static str, status: u16, shell: &'static str) -> Example {
    Example { call, who, status, shell, note: "" }
}

const fn noted(example: Example, note: &'static str) -> Example {
    Example { note, ..example }
}

pub(super) const GROUPS: [Group; 5] = [
    Group { name: "Leases", about: "Acquire, extend and release leases.", examples: &LEASES },
    Group { name: "Documents", about: "The JSON document of a key.", examples: &DOCUMENTS },
    Group {
        name: "Lease objects and administration",
        about: "Read leases, keys and namespaces; revoke leases, pause grants, set quotas.",
        examples: &ADMINISTRATION,
    },
    Group {
        name: "Agents",
        about: "Several resources in one request, several leases in one request, contention and events.",
        examples: &AGENTS,
    },
    Group { name: "Health", about: "The server itself.", examples: &HEALTH },
];

const LEASES: [Example; 6] = [
    noted(
        example(
            "acquire",
            "identities with the right `w` in the namespace; `on_expiry` of `manual`, or of `hold_ms` over 300000, also needs `m`",
            200,
            r#"@/v1/acquire \
  -d '{"key": "orders", "ttl_seconds": 300, "owner": "worker-1"}' > lease.json
LEASE_ID=$(field lease_id < lease.json)
PUBLIC_ID=$(field public_id < lease.json)
TOKEN=$(field fencing_token < lease.json)"#,
        ),
        "A request has exactly one of `key` and `resources`, and at most one of `ttl_seconds` and `ttl_ms`.",
    ),
    example(
        "activate",
        HOLDER,
        200,
        r#"RESERVED=$(@/v1/acquire \
  -d '{"key": "batch", "reserve": true}' | field lease_id)
@/v1/activate \
  -d '{"lease_id": "'"$RESERVED"'"}'"#,
    ),
    noted(
        example(
            "keepalive",
            HOLDER,
            200,
            r#"@/v1/keepalive \
  -d '{"lease_id": "'"$LEASE_ID"'", "ttl_seconds": 300}'"#,
        ),
        "A request has at most one of `ttl_seconds` and `ttl_ms`.",
    ),
    example(
        "release",
        HOLDER,
        200,
        r#"@/v1/release \
  -d '{"lease_id": "'"$RESERVED"'"}'"#,
    ),
    example(
        "rebind",
        HOLDER,
        200,
        r#"@/v1/acquire \
  -d '{"key": "nightly", "ttl_ms": 100, "on_expiry": {"hold_ms": 60000}}' > held.json
sleep 1 # the lease expires, and its key stays on hold for it
@"/v1/leases/$(field public_id < held.json)/rebind" \
  -d '{"lease_id": "'"$(field lease_id < held.json)"'"}'"#,
    ),
    example(
        "touch",
        HOLDER,
        200,
        r#"@"/v1/leases/$PUBLIC_ID/touch" \
  -d '{"lease_id": "'"$LEASE_ID"'"}'"#,
    ),
];

const READER: &str = "the holder; with `public=1`, identities with the right `p` in the namespace";

const DOCUMENTS: [Example; 8] = [
    example(
        "update_state",
        HOLDER,
        200,
        r#"@"/v1/update_state?key=orders" \
  -H "x-lease-id: $LEASE_ID" -H "x-fencing-token: $TOKEN" -d '{"cursor": 41}'"#,
    ),
    example(
        "read_state",
        READER,
        200,
        r#"@"/v1/get_state?key=orders" \
  -H "x-lease-id: $LEASE_ID""#,
    ),
    example(
        "get_state",
        READER,
        200,
        r#"@"/v1/get_state?key=orders&public=1" \
  -X POST"#,
    ),
    example(
        "remove_state",
        HOLDER,
        200,
        r#"@"/v1/remove_state?key=orders" \
  -X POST -H "x-lease-id: $LEASE_ID" -H "x-if-version: 1""#,
    ),
    example(
        "update_state_dashed",
        HOLDER,
        200,
        r#"@"/v1/update-state?key=orders" \
  -H "x-lease-id: $LEASE_ID" -d '{"cursor": 42}'"#,
    ),
    example(
        "read_state_dashed",
        READER,
        200,
        r#"@"/v1/get-state?key=orders" \
  -H "x-lease-id: $LEASE_ID""#,
    ),
    example(
        "get_state_dashed",
        READER,
        200,
        r#"@"/v1/get-state?key=orders" \
  -X POST -H "x-lease-id: $LEASE_ID""#,
    ),
    example(
        "remove_state_dashed",
        HOLDER,
        200,
        r#"@"/v1/remove-state?key=orders" \
  -X POST -H "x-lease-id: $LEASE_ID""#,
    ),
];

const ADMINISTRATION: [Example; 16] = [
    example("describe", READ, 200, r#"@"/v1/describe?key=orders""#),
    example("keys", READ, 200, r#"@"/v1/keys?prefix=ord&limit=10""#),
    example("leases", READ_SOME, 200, r#"@"/v1/leases?namespace=default&limit=10""#),
    noted(
        example("lease", READ, 200, r#"@"/v1/leases/$PUBLIC_ID""#),
        "Without the right `r` in the lease's namespace the response is 404 `not_found`.",
    ),
    example("fence", READ, 200, r#"@"/v1/fence?key=orders&token=$TOKEN""#),
    example("namespaces", READ_SOME, 200, "@/v1/namespaces"),
    example("whoami", ALL, 200, "@/v1/whoami"),
    example(
        "revoke_lease",
        OPERATOR,
        200,
        r#"STUCK=$(@/v1/acquire \
  -d '{"key": "stuck", "ttl_seconds": 300}' | field public_id)
@"/v1/leases/$STUCK/revoke" \
  -X POST"#,
    ),
    example(
        "reclaim_lease",
        OPERATOR,
        200,
        r#"@"/v1/leases/$STUCK/reclaim" \
  -X POST"#,
    ),
    noted(
        example(
            "revoke",
            OPERATOR,
            200,
            r#"@/v1/revoke \
  -d '{"identity": "worker-2"}'"#,
        ),
        "A request has exactly one of `identity` and `agent_id`.",
    ),
    noted(
        example(
            "pause",
            OPERATOR,
            200,
            r#"@/v1/pause \
  -d '{"identity": "worker-2", "paused": true}'"#,
        ),
        "A request has exactly one of `identity` and `agent_id`.",
    ),
    example("quotas", OPERATOR, 200, "@/v1/quotas"),
    example(
        "set_quota",
        OPERATOR,
        200,
        r#"@/v1/quotas \
  -X PUT -d '{"identity": "worker-2", "max_leases": 100}'"#,
    ),
    example(
        "delete_namespace",
        OPERATOR,
        200,
        r"@/v1/namespaces/retired-team \
  -X DELETE",
    ),
    noted(
        example(
            "hand_over",
            OPERATOR,
            409,
            r"@/v1/hand_over \
  -d '{}'",
        ),
        "A store on disk has one server. With a store in a bucket: `lockd store hand-over --server ADDRESS`.",
    ),
    noted(
        example(
            "reload",
            "operators, on the server's Unix socket",
            403,
            r"@/v1/reload \
  -X POST",
        ),
        "On the Unix socket: `lockd reload --unix PATH`, or `curl --unix-socket PATH -X POST http://lockd/v1/reload`.",
    ),
];

const AGENTS: [Example; 10] = [
    noted(
        example(
            "manifest",
            WRITE,
            200,
            r#"@/v1/manifest \
  -d '{"agent_id": "agent-1", "session_id": "run-1",
       "intents": [{"predicate": "MUTATES", "object": "FILE:/src/main.rs"}]}' > manifest.json
AGENT_LEASE=$(field lease_id < manifest.json)"#,
        ),
        "`GRANTED`: the response also has the fields of [Granted](#granted). `WAIT`: conflicting leases; retry, with `wait_ms` to \
         wait in the queue. `DIE`: release the leases in `release`, then retry after `backoff_ms`. `PAUSED`: grants of the agent are \
         paused, or its quota is used up.",
    ),
    example(
        "heartbeat",
        BULK,
        200,
        r#"@/v1/leases/heartbeat \
  -d '{"agent_id": "agent-1", "lease_ids": ["'"$AGENT_LEASE"'"]}'"#,
    ),
    noted(
        example(
            "reconcile",
            BULK,
            200,
            r#"@/v1/leases/reconcile \
  -d '{"agent_id": "agent-1", "lease_ids": ["'"$AGENT_LEASE"'"], "rebind": true}'"#,
        ),
        "Each result also has the fields of [Lease](#lease) if the lease is known.",
    ),
    example("agents", READ, 200, "@/v1/agents"),
    noted(
        example(
            "set_agent",
            "the identity of the agent, with the right `w` in the namespace, and operators; `PAUSED` is for operators",
            200,
            r#"@/v1/agents/agent-1/state \
  -d '{"state": "DIE_RESTART"}'"#,
        ),
        "`DIE_RESTART` announces a restart: a lease that expires before the agent is back stays on hold for 15 seconds. `PAUSED` \
         stops the agent's grants. `ALIVE` ends the announcement and, from an operator, the pause.",
    ),
    example("resource_state", READ, 200, "@/v1/resource/FILE:%2Fsrc%2Fmain.rs/state"),
    example("resource_history", READ, 200, "@/v1/resource/KEY:orders/history"),
    example("contention", READ_SOME, 200, "@/v1/contention"),
    noted(
        example(
            "events",
            READ_SOME,
            200,
            r#"@"/v1/events?namespace=default" \
  -N --max-time 2"#,
        ),
        "`data` of each event is an [Event](#event). Without `--max-time` the command runs until it is interrupted.",
    ),
    example(
        "release_all",
        BULK,
        200,
        r#"@/v1/leases/release \
  -d '{"lease_ids": ["'"$AGENT_LEASE"'", "'"$LEASE_ID"'"]}'"#,
    ),
];

const HEALTH: [Example; 4] = [
    example("healthz", ALL, 200, "@/healthz"),
    example("readyz", ALL, 200, "@/readyz"),
    noted(example("metrics", ALL, 200, "@/metrics"), "The metrics are listed in [metrics](metrics.md)."),
    example("openapi", ALL, 200, "@/openapi.json"),
];
