//! Events as JSON, posted to an address of the web.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_nbd::ClientTls;
use forebay_rt as rt;
use forebay_rt::net::{Stream, resolve};
use forebay_units::Nanos;

use super::config::{NotifyConfig, Url};
use super::host_name;
use super::sink::{Message, Sink};
use crate::files;
use crate::render::{JSON_VERSION, advised};

/// Of an answer, what is read: its first line says whether the message was taken.
const ANSWER_MAX_BYTES: usize = 4096;

/// The sink, if it is configured.
pub(super) fn sink(config: &NotifyConfig) -> Option<Sink> {
    let (url, ca) = (config.webhook.clone()?, config.webhook_ca.clone());
    Some(Sink {
        name: "webhook",
        least: config.least,
        batch_max: 64,
        messages_max: 30,
        window: Nanos::from_secs(60),
        send: Box::new(move |message| {
            let body = body(&host_name(), &message);
            Box::pin(post(url.clone(), ca.clone(), body))
        }),
        state: Default::default(),
    })
}

/// The document: the events in the order in which they happened.
pub(super) fn body(host: &str, message: &Rc<Message>) -> String {
    let events: Vec<_> = message.notices.iter().map(|notice| advised(&notice.event)).collect();
    let document = serde_json::json!({
        "version": JSON_VERSION,
        "host": host,
        "missed": message.missed,
        "events": events,
    });
    document.to_string()
}

async fn post(url: Url, ca: PathBuf, body: String) -> Result<(), String> {
    let (host, port) = (url.host.clone(), url.port);
    let found = rt::aside(move || resolve(&host, port)).await.map_err(|e| e.to_string())?;
    let address = *found.first().ok_or_else(|| format!("{} has no address", url.host))?;
    let stream = Stream::connect_tcp(address).await.map_err(|e| format!("{address}: {e}"))?;
    let host = match url.host.contains(':') {
        true => format!("[{}]", url.host),
        false => url.host.clone(),
    };
    let request = format!(
        "POST {} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nUser-Agent: forebay/{}\r\nConnection: close\r\n\r\n{body}",
        url.target,
        body.len(),
        env!("CARGO_PKG_VERSION"),
    );
    let answer = match url.is_https {
        true => {
            let tls = authorities(&ca).await?;
            tls.exchange(&url.host, &stream, request.as_bytes(), ANSWER_MAX_BYTES).await
        }
        false => plain(&stream, request.into_bytes()).await,
    };
    stream.shutdown();
    judge(&answer.map_err(|e| e.to_string())?)
}

/// Reads the certificates of the authorities in the file `ca`.
pub async fn authorities(ca: &Path) -> Result<ClientTls, String> {
    let path = ca.to_owned();
    let read = move || {
        let mut text = Vec::new();
        let mut file = files::open_to_read(&path)?;
        std::io::Read::read_to_end(&mut file, &mut text).map(|_| text)
    };
    let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", ca.display());
    let pem = rt::aside(read).await.map_err(|e: std::io::Error| failed(&e))?;
    ClientTls::from_pem(&pem, None).map_err(|e| failed(&e))
}

async fn plain(stream: &Stream, request: Vec<u8>) -> std::io::Result<Vec<u8>> {
    stream.send_all(request).await.0?;
    let mut buf = vec![0; ANSWER_MAX_BYTES];
    let mut len = 0;
    while len < buf.len() && !buf[..len].contains(&b'\n') {
        let (received, back) = stream.recv(buf, len).await;
        buf = back;
        match received? {
            0 => break,
            bytes => len += bytes,
        }
    }
    buf.truncate(len);
    Ok(buf)
}

/// Fails unless the answer says that the message was taken.
pub(super) fn judge(answer: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(answer);
    let line = text.lines().next().unwrap_or_default();
    let code = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    match code {
        Some(code) if code.len() == 3 && code.starts_with('2') => Ok(()),
        _ => Err(format!("the answer was '{}'", crate::escape::visible(line))),
    }
}
