//! Keys of the screen, and the mode of the terminal in which they come one by one.

use std::io;
use std::time::Duration;

use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode};

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The end of the screen.
    Leave,
    /// The end of the process: Ctrl-C.
    Interrupt,
    /// The next pool.
    Next,
    /// The pool before.
    Before,
    /// A screen of another size.
    Resized,
}

/// The keyboard, as long as it is read key by key.
pub struct Keys(());

impl Keys {
    /// From now on keys are not echoed, and Ctrl-C is a key.
    pub fn take() -> io::Result<Self> {
        enable_raw_mode().map(|()| Self(()))
    }

    /// A key that was hit. Keys without a meaning are passed over.
    pub fn next(&self) -> Option<Key> {
        while poll(Duration::ZERO).unwrap_or(false) {
            if let Ok(event) = read() {
                if let Some(key) = meaning(&event) {
                    return Some(key);
                }
            }
        }
        None
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = disable_raw_mode();
    }
}

fn meaning(event: &Event) -> Option<Key> {
    let key = match event {
        Event::Resize(..) => return Some(Key::Resized),
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return None,
    };
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if is_control => Some(Key::Interrupt),
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Some(Key::Leave),
        KeyCode::Tab | KeyCode::Right | KeyCode::Down | KeyCode::Char('n') => Some(Key::Next),
        KeyCode::BackTab | KeyCode::Left | KeyCode::Up | KeyCode::Char('p') => Some(Key::Before),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::crossterm::event::KeyEvent;

    #[test]
    fn keys_have_their_meaning() {
        let of = |code, modifiers| meaning(&Event::Key(KeyEvent::new(code, modifiers)));
        let none = KeyModifiers::NONE;
        assert_eq!(of(KeyCode::Char('q'), none), Some(Key::Leave));
        assert_eq!(of(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::Interrupt));
        assert_eq!(of(KeyCode::Char('c'), none), None);
        assert_eq!(of(KeyCode::Tab, none), Some(Key::Next));
        assert_eq!(of(KeyCode::BackTab, KeyModifiers::SHIFT), Some(Key::Before));
        assert_eq!(meaning(&Event::Resize(80, 24)), Some(Key::Resized));
        assert_eq!(meaning(&Event::FocusLost), None);
    }
}
