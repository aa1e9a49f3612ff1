//! The page: one document with its style and script in it, and the headers that fence it in.

use ring::digest::{SHA256, digest};

use crate::http::Response;

const DOCUMENT: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page, ready to be sent.
pub struct Page {
    /// The document.
    pub text: String,
    policy: String,
}

impl Page {
    /// Puts the document together. The policy allows its own style and script, by their digests,
    /// and requests to where it came from; nothing else.
    pub fn new() -> Self {
        let text = DOCUMENT.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT);
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            digest_of(SCRIPT),
            digest_of(STYLE)
        );
        Self { text, policy }
    }

    /// `answer` with the headers of every answer.
    pub fn secured(&self, answer: Response) -> Response {
        answer
            .with_header("Content-Security-Policy", self.policy.clone())
            .with_header("X-Content-Type-Options", "nosniff")
            .with_header("X-Frame-Options", "DENY")
            .with_header("Referrer-Policy", "no-referrer")
            .with_header("Cross-Origin-Opener-Policy", "same-origin")
            .with_header("Cross-Origin-Resource-Policy", "same-origin")
            .with_header("Cache-Control", "no-store")
    }
}

/// The SHA-256 of `text` in base 64.
fn digest_of(text: &str) -> String {
    base64(digest(&SHA256, text.as_bytes()).as_ref())
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            match at <= three.len() {
                true => out.push(DIGITS[(word >> (18 - 6 * at) & 63) as usize] as char),
                false => out.push('='),
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_64_is_that_of_the_standard() {
        let pairs =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")];
        for (plain, coded) in pairs {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn the_page_has_its_style_and_script_and_asks_for_nothing_outside() {
        let page = Page::new();
        assert!(page.text.contains(STYLE) && page.text.contains(SCRIPT));
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            let found = page.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!found.contains(outside), "{outside}");
        }
    }
}
