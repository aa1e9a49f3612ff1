//! Hints for clients: commands that connect to a served volume.

/// The NBD URI of `export` at `listener` (`unix:PATH` or `tcp:HOST:PORT`).
#[must_use]
pub fn nbd_uri(listener: &str, export: &str, tls: bool) -> String {
    let nbd = if tls { "nbds" } else { "nbd" };
    match listener.split_once(':') {
        Some(("unix", path)) => format!("{nbd}+unix:///{}?socket={}", quoted(export), quoted(path)),
        Some(("tcp", address)) => format!("{nbd}://{address}/{}", quoted(export)),
        _ => format!("{listener}/{export}"),
    }
}

/// Percent-encodes bytes that a URI may not hold as they are.
fn quoted(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Commands that use `export` through the listeners.
#[must_use]
pub fn connect_hints(listeners: &[String], export: &str, tls: bool) -> Vec<String> {
    let uris: Vec<String> = listeners.iter().map(|l| nbd_uri(l, export, tls)).collect();
    let Some(uri) = uris.first() else { return Vec::new() };
    if tls {
        // Clients differ in their support of TLS and in where they look for certificates.
        let mut lines = vec![format!("Connect a client to {export} with TLS:")];
        lines.extend(uris.iter().map(|uri| {
            let next = if uri.contains('?') { '&' } else { '?' };
            format!("  nbdinfo '{uri}{next}tls-certificates=FOLDER'")
        }));
        return lines;
    }
    let mut lines = vec![format!("Connect a client to {export}:")];
    let also = uris.iter().skip(1).map(|other| format!("  nbdinfo '{other}'"));
    lines.push(format!("  nbdinfo '{uri}'"));
    lines.extend(also);
    lines.push(format!("  qemu-img convert -p -n -O raw disk.img '{uri}'"));
    lines.push(format!(
        "  fio --name=try --ioengine=nbd --uri='{uri}' --rw=randwrite --bs=4k --iodepth=32 \
         --fsync=1 --time_based --runtime=10"
    ));
    lines.push(format!("  mkdir -p mnt && nbdfuse mnt/disk '{uri}'"));
    lines
}
