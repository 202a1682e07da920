//! Extended attributes and access control lists of copies.
//!
//! **Invariant.** A copy is open to no user that its source is closed to. With an access control list the group bits
//! of a mode are the list's mask, not the rights of the owning group. So the list is copied with the mode; where the
//! filesystem does not take it, the group bits of the copy are those of the list's group entry, under the mask.
//!
//! **What would break it.** Keeping the mode and dropping the list: the owning group gets the mask. Or a list that the
//! copy inherits from the directory above: users that it names get what the mode's mask allows. So an inherited
//! list is removed before the mode is set.
//!
//! Attributes that the user may not set, or the filesystem does not have, are left out; those of symbolic links too.

use std::os::fd::OwnedFd;

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, flistxattr_query, fremovexattr, fsetxattr};
use rustix::io::{Errno, Result};

const ACCESS_LIST: &str = "system.posix_acl_access";
const DEFAULT_LIST: &str = "system.posix_acl_default";

/// The largest value of an attribute, and of the list of names, on Linux.
const VALUE_MAX: usize = 64 * 1024;

/// Copies the attributes of `source` to `copy`, which has its owner already. Returns the mode to set: `mode`, or less
/// if the access control list could not be copied.
pub(super) fn copy(source: &OwnedFd, copy: &OwnedFd, mode: u32) -> Result<u32> {
    remove_inherited(copy)?;
    let mut mode = mode;
    for name in names(source)? {
        let Some(value) = value(source, &name)? else { continue };
        let is_kept = set(copy, &name, &value)?;
        if !is_kept && name == ACCESS_LIST {
            mode = without_mask(mode, &value);
        }
    }
    Ok(mode)
}

/// All attributes that can be read, by name. Labels of security modules are left out, because the system sets them.
pub(crate) fn all(file: &OwnedFd) -> Result<Vec<(String, Vec<u8>)>> {
    let mut all = Vec::new();
    for name in names(file)? {
        let is_label = name.starts_with("security.") && name != "security.capability";
        if let Some(value) = value(file, &name)?.filter(|_| !is_label) {
            all.push((name, value));
        }
    }
    all.sort_unstable();
    Ok(all)
}

/// Lists that a new file inherits from its directory.
fn remove_inherited(copy: &OwnedFd) -> Result<()> {
    for name in names(copy)?.iter().filter(|name| [ACCESS_LIST, DEFAULT_LIST].contains(&name.as_str())) {
        match fremovexattr(copy, name.as_str()) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            other => other?,
        }
    }
    Ok(())
}

/// The names of all attributes that can be read; other names than UTF-8 are not used on Linux.
fn names(file: &OwnedFd) -> Result<Vec<String>> {
    match flistxattr_query(file) {
        // Most files have none, and filesystems without attributes refuse.
        Ok(0) | Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => return Ok(Vec::new()),
        other => {
            other?;
        }
    }
    let mut list = vec![0; VALUE_MAX];
    let len = flistxattr(file, &mut list[..])?;
    let names = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.filter_map(|name| String::from_utf8(name.to_vec()).ok()).collect())
}

/// `None` if the attribute is gone, or may not be read.
fn value(file: &OwnedFd, name: &str) -> Result<Option<Vec<u8>>> {
    let mut value = vec![0; VALUE_MAX];
    match fgetxattr(file, name, &mut value[..]) {
        Ok(len) => {
            value.truncate(len);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => Ok(None),
        Err(cause) => Err(cause),
    }
}

/// False if the filesystem or the user's rights do not allow the attribute.
fn set(copy: &OwnedFd, name: &str, value: &[u8]) -> Result<bool> {
    match fsetxattr(copy, name, value, XattrFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS | Errno::INVAL) => Ok(false),
        Err(cause) => Err(cause),
    }
}

/// `mode` with the rights of the owning group in place of the mask. A list that cannot be parsed gives none.
fn without_mask(mode: u32, list: &[u8]) -> u32 {
    // A version, then entries of a tag, rights and an id; all in little-endian order.
    let (group_entry, mask_entry) = (0x04_u16, 0x10_u16);
    let entries = list.get(4..).unwrap_or_default().chunks_exact(8);
    let rights = |wanted: u16| {
        let mut entries = entries.clone();
        entries.find_map(|entry| {
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            (tag == wanted).then(|| u32::from(u16::from_le_bytes([entry[2], entry[3]])) & 0o7)
        })
    };
    let group = rights(group_entry).unwrap_or(0) & rights(mask_entry).unwrap_or(0o7);
    (mode & !0o070) | (group << 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (tag, rights) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(rights.to_le_bytes());
            bytes.extend(u32::MAX.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn the_mask_never_becomes_the_rights_of_the_owning_group() {
        let (owner, user, group, mask, other) = (0x01, 0x02, 0x04, 0x10, 0x20);
        let secret = list(&[(owner, 6), (user, 6), (group, 0), (mask, 6), (other, 0)]);
        assert_eq!(without_mask(0o660, &secret), 0o600);
        let masked = list(&[(owner, 7), (group, 7), (mask, 4), (other, 0)]);
        assert_eq!(without_mask(0o740, &masked), 0o740);
        assert_eq!(without_mask(0o4671, b"torn"), 0o4601, "a list that cannot be parsed gives nothing");
    }
}
