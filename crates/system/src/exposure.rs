//! Who may access a file or a directory beside its owner, by its mode.
//!
//! **What is absent.** Access control lists, and the directories above: a mode that is too wide is reported even if nobody
//! can get there today.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const GROUP: u32 = 0o070;
const WORLD: u32 = 0o007;

/// Who may access a file or a directory. The texts are for people, with the command that helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// Its owner alone.
    Private,
    /// Its group too.
    Group(String),
    /// Every user of the machine.
    World(String),
}

/// Who may access a file or a directory that holds secrets. Links are followed; a pipe or a device has no owner in this sense.
pub fn of(path: &Path) -> io::Result<Exposure> {
    let metadata = fs::metadata(path)?;
    let mode = metadata.permissions().mode() & 0o7777;
    let wanted = match (metadata.is_dir(), metadata.is_file()) {
        (true, _) => "700",
        (_, true) => "600",
        _ => return Ok(Exposure::Private),
    };
    let text = |who: &str| {
        let (shown, word) = (path.display(), shell_word(path));
        format!(
            "{who} may access it, and it holds secrets; run `chmod {wanted} {word}`: mode={mode:04o} path={shown}"
        )
    };
    Ok(match mode {
        mode if mode & WORLD != 0 => Exposure::World(text("every user of this machine")),
        mode if mode & GROUP != 0 => Exposure::Group(text("a group of users")),
        _ => Exposure::Private,
    })
}

/// A path as one word of a shell command.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,@".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn a_mode_for_the_world_or_the_group_is_told_with_the_command_that_helps() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("it's a file");
        fs::write(&file, "secret").expect("written");
        let exposure = |path: &Path, mode: u32| {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
            of(path).expect("there")
        };
        for mode in [0o600, 0o400, 0o700] {
            assert_eq!(exposure(&file, mode), Exposure::Private, "{mode:o}");
            assert_eq!(exposure(dir.path(), 0o700), Exposure::Private);
        }
        for mode in [0o640, 0o660, 0o710] {
            assert!(matches!(exposure(&file, mode), Exposure::Group(_)), "{mode:o}");
        }
        for mode in [0o644, 0o604, 0o602, 0o601, 0o777] {
            let Exposure::World(text) = exposure(&file, mode) else { panic!("{mode:o}") };
            assert!(text.contains(r"it'\''s a file'`: mode=0"), "{text}");
        }
        let Exposure::World(text) = exposure(dir.path(), 0o755) else { panic!("a directory for all") };
        assert!(text.contains(&format!("`chmod 700 {}`: mode=0755", dir.path().display())), "{text}");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).expect("ours");
        assert_eq!(of(Path::new("/dev/null")).expect("there"), Exposure::Private);
        assert!(of(&dir.path().join("missing")).is_err());
    }
}
