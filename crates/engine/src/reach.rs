//! Which functions of the sequencer have run, for the simulator: `reached!()` is the first statement of each of them.
//!
//! Only under the feature `reach`; without it the macro is empty. The list of functions is read from the sources, so a
//! function that is added without the macro is reported like one that never ran.

/// Notes that the function around it has run.
macro_rules! reached {
    () => {
        #[cfg(feature = "reach")]
        {
            static SEEN: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
            if !SEEN.load(std::sync::atomic::Ordering::Relaxed) {
                SEEN.store(true, std::sync::atomic::Ordering::Relaxed);
                crate::reach::note(file!(), line!());
            }
        }
    };
}

#[cfg(feature = "reach")]
pub(crate) use self::places::note;
#[cfg(feature = "reach")]
pub use self::places::unreached;

#[cfg(feature = "reach")]
mod places {
    use std::collections::BTreeSet;
    use std::sync::{Mutex, PoisonError};

    /// The places of `reached!()` that have run: file and line.
    static PLACES: Mutex<BTreeSet<(&str, u32)>> = Mutex::new(BTreeSet::new());

    const SOURCES: [(&str, &str); 3] = [
        ("src/sequencer.rs", include_str!("sequencer.rs")),
        ("src/sequencer/turn.rs", include_str!("sequencer/turn.rs")),
        ("src/sequencer/inbox.rs", include_str!("sequencer/inbox.rs")),
    ];

    pub(crate) fn note(file: &'static str, line: u32) {
        PLACES.lock().unwrap_or_else(PoisonError::into_inner).insert((file, line));
    }

    /// The functions of the sequencer that have not run in this process, as `file: function`.
    pub fn unreached() -> Vec<String> {
        let places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names = Vec::new();
        for (file, source) in SOURCES {
            let ran = |line: u32| places.iter().any(|(path, at)| path.ends_with(file) && *at == line);
            let unreached = functions(source).into_iter().filter(|(_, line)| !line.is_some_and(ran));
            names.extend(unreached.map(|(name, _)| format!("{file}: {name}")));
        }
        names
    }

    /// Every function with a body, and the line of its `reached!()`, if it has one. Planted faults do not count.
    fn functions(source: &str) -> Vec<(&str, Option<u32>)> {
        let mut functions: Vec<(&str, Option<u32>)> = Vec::new();
        let mut before = "";
        let mut is_declaration = false;
        for (line, number) in source.lines().zip(1..) {
            let signature = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(super) ");
            if let Some(rest) = signature.strip_prefix("fn ").filter(|_| !before.contains("planted")) {
                functions.push((rest.split(['(', '<']).next().unwrap_or(rest), None));
                is_declaration = true;
            }
            if is_declaration && (line.ends_with(';') || line.ends_with("{}")) {
                functions.pop();
            }
            is_declaration &= !line.ends_with(['{', ';', '}']);
            if line.trim() == "reached!();"
                && let Some(function) = functions.last_mut()
            {
                function.1 = Some(number);
            }
            before = line;
        }
        functions
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// A function without the macro would count as one that the simulator never reaches.
        #[test]
        fn every_function_of_the_sequencer_is_marked() {
            for (file, source) in SOURCES {
                let found = functions(source);
                assert!(found.len() > 10, "{file}: {}", found.len());
                for (name, line) in found {
                    assert!(line.is_some(), "{file}: {name} does not begin with `reached!();`");
                }
            }
        }
    }
}
