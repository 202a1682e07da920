//! The terminal in raw mode, on its alternate screen; restored on drop.

use std::io::{self, Read, Write};

use cli::remote::{Failure, failed};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use super::view::Line;

/// A key that the user pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Character(char),
    Up,
    Down,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C or Ctrl-D.
    Interrupt,
}

/// The terminal.
pub(super) struct Screen {
    before: Termios,
    out: io::Stdout,
    keys: mpsc::Receiver<Key>,
}

/// Enter the alternate screen, and hide the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

impl Screen {
    pub(super) fn open() -> Result<Screen, Failure> {
        let raw_mode =
            |error: rustix::io::Errno| failed("setting up the terminal", &std::io::Error::from(error));
        let before = tcgetattr(io::stdin()).map_err(raw_mode)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw).map_err(raw_mode)?;
        let mut screen = Screen { before, out: io::stdout(), keys: read_keys() };
        screen.write(ENTER)?;
        Ok(screen)
    }

    /// Columns and rows.
    pub(super) fn size() -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => (80, 24),
        }
    }

    /// The next key; `None` if the input has ended.
    pub(super) async fn key(&mut self) -> Option<Key> {
        self.keys.recv().await
    }

    pub(super) fn draw(&mut self, lines: &[Line]) -> Result<(), Failure> {
        let mut text = String::from("\x1b[H");
        for (at, line) in lines.iter().enumerate() {
            let style = match line {
                Line { is_selected: true, .. } => "\x1b[7m",
                Line { is_bold: true, .. } => "\x1b[1m",
                _ => "",
            };
            let end = if at + 1 == lines.len() { "" } else { "\r\n" };
            text.extend([style, &line.text, "\x1b[K\x1b[0m", end]);
        }
        self.write(&(text + "\x1b[J"))
    }

    fn write(&mut self, text: &str) -> Result<(), Failure> {
        let out = &mut self.out;
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|error| failed("writing to the terminal", &error))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.write(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
    }
}

/// Reads the terminal on a thread of its own, which ends with the process.
fn read_keys() -> mpsc::Receiver<Key> {
    let (send, receive) = mpsc::channel(64);
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok(length @ 1..) = io::stdin().read(&mut buffer) {
            for key in keys_of(&buffer[..length]) {
                if send.blocking_send(key).is_err() {
                    return;
                }
            }
        }
    });
    receive
}

/// The keys in what a terminal sent at once.
fn keys_of(bytes: &[u8]) -> Vec<Key> {
    match bytes {
        b"\x1b[A" | b"\x1bOA" => return vec![Key::Up],
        b"\x1b[B" | b"\x1bOB" => return vec![Key::Down],
        [0x1b] => return vec![Key::Escape],
        // Any other sequence of a special key.
        [0x1b, ..] => return Vec::new(),
        _ => {}
    }
    let key = |letter: char| match letter {
        '\u{3}' | '\u{4}' => Some(Key::Interrupt),
        '\r' | '\n' => Some(Key::Enter),
        '\u{7f}' | '\u{8}' => Some(Key::Backspace),
        letter if letter.is_control() => None,
        letter => Some(Key::Character(letter)),
    };
    String::from_utf8_lossy(bytes).chars().filter_map(key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_from_what_terminals_send() {
        assert_eq!(keys_of(b"\x1b[A"), [Key::Up]);
        assert_eq!(keys_of(b"\x1bOB"), [Key::Down]);
        assert_eq!(keys_of(b"\x1b"), [Key::Escape]);
        assert!(keys_of(b"\x1b[5~").is_empty());
        assert_eq!(
            keys_of("q\u{e9}\r\x7f\x03".as_bytes()),
            [Key::Character('q'), Key::Character('\u{e9}'), Key::Enter, Key::Backspace, Key::Interrupt]
        );
    }
}
