//! The calls that frames carry: those with short bodies in both directions.

/// The method of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Acts.
    Post,
}

impl Method {
    /// The byte in a frame.
    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Method::Get => 1,
            Method::Post => 2,
        }
    }

    pub(crate) fn from_byte(byte: u8) -> Option<Method> {
        match byte {
            1 => Some(Method::Get),
            2 => Some(Method::Post),
            _ => None,
        }
    }
}

/// Calls without parameters in their path, and whether they take a query.
const CALLS: [(Method, &str, bool); 13] = [
    (Method::Post, "/v1/acquire", false),
    (Method::Post, "/v1/keepalive", false),
    (Method::Post, "/v1/release", false),
    (Method::Post, "/v1/update_state", true),
    (Method::Post, "/v1/remove_state", true),
    (Method::Post, "/v1/activate", false),
    (Method::Post, "/v1/manifest", false),
    (Method::Post, "/v1/leases/heartbeat", false),
    (Method::Post, "/v1/leases/release", false),
    (Method::Post, "/v1/revoke", false),
    (Method::Get, "/v1/describe", true),
    (Method::Get, "/v1/fence", true),
    (Method::Get, "/v1/whoami", false),
];

/// Calls of one lease: what follows its public id in the path.
const OF_LEASE: [&str; 4] = ["/rebind", "/touch", "/revoke", "/reclaim"];

/// Whether frames carry this call. All others, such as lists, streams and the reading of documents, are sent over HTTP.
pub fn is_carried(method: Method, target: &str) -> bool {
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    let is_short = |(of, known, takes_query): &(Method, &str, bool)| {
        *of == method && *known == path && (*takes_query || query.is_none())
    };
    if CALLS.iter().any(is_short) {
        return true;
    }
    let Some(lease) = path.strip_prefix("/v1/leases/").filter(|_| method == Method::Post && query.is_none())
    else {
        return false;
    };
    let id = OF_LEASE.iter().find_map(|act| lease.strip_suffix(act));
    id.is_some_and(|id| !id.is_empty() && !id.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_calls_are_carried_and_streams_are_not() {
        for target in ["/v1/acquire", "/v1/update_state?key=a", "/v1/leases/L-1/touch"] {
            assert!(is_carried(Method::Post, target), "{target}");
        }
        for target in [
            "/v1/acquire?include_state=1",
            "/v1/get_state?key=a",
            "/v1/leases//touch",
            "/v1/leases/a/b/touch",
            "/v1/leases/L-1",
            "/v1/leases/L-1/touch?a",
            "/V1/acquire",
            "/v1/acquire/",
        ] {
            assert!(!is_carried(Method::Post, target), "{target}");
        }
        assert!(is_carried(Method::Get, "/v1/describe?key=a"));
        for target in ["/v1/acquire", "/v1/events", "/v1/leases", "/v1/leases/L-1/touch", "/metrics"] {
            assert!(!is_carried(Method::Get, target), "{target}");
        }
    }
}
