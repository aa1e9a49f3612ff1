//! Stores of the world outside: S3 and what speaks its protocol, and folders.
//!
//! What enters: where the store is, settings. What leaves: a [`Store`]. What always holds: requests
//! run on a thread of their own, and answers come back to the caller's; names and messages have no
//! credentials. Who calls: openers of devices.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path as FilePath, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_device::{IoBuf, IoBytes};
use forebay_format::checksum::crc64;
use forebay_objects::{Answer, Store, StoreError};
use forebay_rt as rt;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, GetOptions, GetRange, ObjectStore, PutMode, PutOptions, PutPayload,
    RetryConfig,
};
use tokio::runtime::{Builder, Handle};

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request may take. It is made again then.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A folder as it was when the store was opened.
struct Folder {
    path: PathBuf,
    /// Its file system and its number there.
    id: (u64, u64),
}

impl Folder {
    fn at(path: &FilePath) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), id: id_of(path)? })
    }

    /// Fails while the path leads to another folder, or to none: objects would be written to where
    /// no later import finds them, such as below the place of a mount that is gone.
    fn check(&self) -> object_store::Result<()> {
        let path = self.path.display();
        let text = match id_of(&self.path) {
            Ok(id) if id == self.id => return Ok(()),
            Ok(_) => format!("another folder is in the place of {path}: is it mounted?"),
            Err(error) => format!("{path}: {error}"),
        };
        Err(Error::Generic { store: "folder", source: text.into() })
    }
}

fn id_of(folder: &FilePath) -> io::Result<(u64, u64)> {
    std::fs::metadata(folder).map(|found| (found.dev(), found.ino()))
}

/// A store on the network, or a folder.
pub struct RemoteStore {
    name: String,
    prefix: Path,
    store: Arc<dyn ObjectStore>,
    runtime: Handle,
    /// The folder, where it is one.
    folder: Option<Arc<Folder>>,
    /// Ends the thread when it is dropped.
    _running: tokio::sync::oneshot::Sender<()>,
    /// Keeps other processes of this machine from opening it, until this one ends. `None`: it was
    /// opened to look.
    _lock: Option<UnixListener>,
}

impl RemoteStore {
    /// Objects below `prefix` in a bucket of S3, or of a server that speaks its protocol.
    /// `settings` are those of the environment and of profiles, by the names that AWS has for them,
    /// such as `aws_access_key_id` or `aws_endpoint_url`; unknown ones are passed over. With
    /// `exclusive`, no other process of this machine opens it so as well.
    pub fn s3(
        name: &str,
        (bucket, prefix): (&str, &str),
        settings: &[(String, String)],
        exclusive: bool,
    ) -> Result<Rc<Self>, StoreError> {
        // Another part of the process may have chosen a provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Requests are made again by the device, which knows whether anyone waits.
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let mut client = ClientOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_timeout(REQUEST_TIMEOUT);
        let given = |key: AmazonS3ConfigKey| {
            let parsed = |name: &String| name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>();
            settings.iter().find(|(name, _)| parsed(name).is_ok_and(|found| found == key))
        };
        // Two spellings of one prefix are one place.
        let prefix = prefix.trim_matches('/');
        let mut place = format!("{bucket}/{prefix}");
        let mut builder = AmazonS3Builder::new().with_retry(retry);
        for (key, value) in settings {
            let Ok(key) = key.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() else { continue };
            if key == AmazonS3ConfigKey::Endpoint && value.starts_with("http://") {
                client = client.with_allow_http(true);
            }
            if key == AmazonS3ConfigKey::Endpoint {
                place = format!("{value}/{bucket}/{prefix}");
            }
            builder = builder.with_config(key, value);
        }
        if given(AmazonS3ConfigKey::Checksum).is_none() {
            // The store compares what came with it, and keeps it with the object.
            builder = builder.with_checksum_algorithm(Checksum::CRC64NVME);
        }
        let endpoint = given(AmazonS3ConfigKey::Endpoint).map_or("", |(_, endpoint)| endpoint);
        check_endpoint(endpoint)?;
        let is_plain = endpoint.starts_with("http://");
        if is_plain && given(AmazonS3ConfigKey::WebIdentityTokenFile).is_none() {
            // Nothing is asked over TLS, and a container may have no authorities.
            client = client.with_no_system_certificates(true);
        }
        let is_protected = !is_plain || is_on_this_machine(endpoint);
        if is_protected && given(AmazonS3ConfigKey::UnsignedPayload).is_none() {
            // TLS or the kernel, and the checksum, protect it. A second hash over all bytes, here
            // and at the store, would halve what a store on this machine takes.
            builder = builder.with_unsigned_payload(true);
        }
        let built = builder.with_bucket_name(bucket).with_client_options(client).build();
        let store = built.map_err(|error| StoreError::Refused { text: setting(&error) })?;
        Self::over(name, &place, (Arc::new(store), None), prefix, exclusive)
    }

    /// Objects as files below a folder. With `exclusive`, no other process of this machine opens it
    /// so as well.
    pub fn folder(name: &str, folder: &FilePath, exclusive: bool) -> Result<Rc<Self>, StoreError> {
        let refused = |text: String| StoreError::Refused { text };
        // Two spellings of one folder are one place.
        let folder = &folder.canonicalize().map_err(|error| refused(error.to_string()))?;
        let store = LocalFileSystem::new_with_prefix(folder)
            .map_err(|error| refused(first_line(&error)))?
            .with_fsync(true);
        let place = Folder::at(folder).map_err(|error| refused(error.to_string()))?;
        let store: (Arc<dyn ObjectStore>, _) = (Arc::new(store), Some(Arc::new(place)));
        Self::over(name, &folder.display().to_string(), store, "", exclusive)
    }

    fn over(
        name: &str,
        place: &str,
        (store, folder): (Arc<dyn ObjectStore>, Option<Arc<Folder>>),
        prefix: &str,
        exclusive: bool,
    ) -> Result<Rc<Self>, StoreError> {
        let refused = |text: String| StoreError::Refused { text };
        let lock = if exclusive { Some(lock(place)?) } else { None };
        let prefix = Path::parse(prefix).map_err(|error| refused(error.to_string()))?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| refused(error.to_string()))?;
        let handle = runtime.handle().clone();
        let (running, ended) = tokio::sync::oneshot::channel();
        rt::spawn_detached(Box::pin(rt::aside(move || {
            // An error means that the store was dropped, as intended.
            let _ = runtime.block_on(ended);
            // A request that is still under way may block for as long as it wants.
            runtime.shutdown_background();
        })));
        let name = name.to_owned();
        let runtime = handle;
        Ok(Rc::new(Self { name, prefix, store, runtime, folder, _running: running, _lock: lock }))
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').filter(|part| !part.is_empty()).fold(self.prefix.clone(), Path::join)
    }

    /// Runs a request on the store's thread.
    async fn run<T: Send + 'static>(
        &self,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, Error> {
        let (done, answer) = rt::oneshot::channel();
        let folder = self.folder.clone();
        self.runtime.spawn(async move {
            // What the request sent is let go of before the caller hears of it: buffers that the
            // pool's thread frees last are used again there.
            let outcome = async move {
                check(folder).await?;
                request.await
            }
            .await;
            // The caller may have stopped waiting.
            let _ = done.send(outcome);
        });
        answer.await.unwrap_or_else(|_| {
            Err(Error::Generic { store: "thread", source: "its thread has ended".into() })
        })
    }
}

/// As [`Folder::check`], beside other requests: a file system may take its time.
async fn check(folder: Option<Arc<Folder>>) -> object_store::Result<()> {
    let Some(folder) = folder else { return Ok(()) };
    let checked = tokio::task::spawn_blocking(move || folder.check()).await;
    checked.unwrap_or_else(|error| Err(Error::Generic { store: "folder", source: error.into() }))
}

/// Fails when requests could not be made to an endpoint: the library panics at each of them. An
/// empty one is that of the region.
fn check_endpoint(endpoint: &str) -> Result<(), StoreError> {
    let parsed = reqwest::Url::parse(endpoint).ok();
    let is_usable = |url: reqwest::Url| ["http", "https"].contains(&url.scheme()) && url.has_host();
    if endpoint.is_empty() || parsed.is_some_and(is_usable) {
        return Ok(());
    }
    let text = format!(
        "the endpoint '{endpoint}' is no address: it begins with https:// or http://, such as \
         https://store.example:7070"
    );
    Err(StoreError::Refused { text })
}

/// Whether requests to an endpoint leave this machine on no network.
fn is_on_this_machine(endpoint: &str) -> bool {
    let authority = endpoint.split_once("://").map_or("", |(_, rest)| rest);
    let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    let place = authority.rsplit('@').next().unwrap_or_default();
    let host = match place.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => place.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A name in the kernel that one process can have at a time. Nothing of it is left when it ends.
fn lock(place: &str) -> Result<UnixListener, StoreError> {
    // Such names have 107 bytes at most.
    let name = format!("forebay-objects-{:016x}", crc64(place.as_bytes()));
    let bound = SocketAddr::from_abstract_name(name).and_then(|at| UnixListener::bind_addr(&at));
    bound.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => StoreError::InUse,
        _ => StoreError::Refused { text: error.to_string() },
    })
}

/// Bytes of a device for the network, which are not copied.
struct Part(IoBytes);

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Store for RemoteStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn put<'a>(&'a self, name: &'a str, parts: Vec<IoBytes>, only_new: bool) -> Answer<'a, ()> {
        let (store, path) = (self.store.clone(), self.path(name));
        let payload: PutPayload =
            parts.into_iter().map(|part| Bytes::from_owner(Part(part))).collect();
        let mode = if only_new { PutMode::Create } else { PutMode::Overwrite };
        let options = PutOptions { mode, ..PutOptions::default() };
        let request = async move { store.put_opts(&path, payload, options).await };
        Box::pin(async move { self.run(request).await.map(|_| ()).map_err(|e| put_error(&e)) })
    }

    fn get<'a>(&'a self, name: &'a str, range: Option<Range<u64>>) -> Answer<'a, Vec<IoBytes>> {
        let (store, path) = (self.store.clone(), self.path(name));
        let range = range.map(GetRange::Bounded);
        let request = async move {
            let options = GetOptions { range, ..GetOptions::default() };
            let chunks = store.get_opts(&path, options).await?.into_stream();
            // Copied here, and not on the thread of the pool.
            chunks.map_ok(|chunk| IoBuf::copy_of(&chunk).freeze()).try_collect::<Vec<_>>().await
        };
        Box::pin(async move { self.run(request).await.map_err(|error| get_error(&error)) })
    }

    fn delete(&self, names: Vec<String>) -> Answer<'_, ()> {
        let store = self.store.clone();
        let paths: Vec<_> = names.iter().map(|name| Ok(self.path(name))).collect();
        let request = async move {
            let mut deleted = store.delete_stream(stream::iter(paths).boxed());
            while let Some(outcome) = deleted.next().await {
                match outcome {
                    Ok(_) | Err(Error::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        Box::pin(async move { self.run(request).await.map_err(|error| put_error(&error)) })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<String>> {
        let store = self.store.clone();
        let (folder, whole) = (self.path(prefix), self.prefix.clone());
        let request = async move {
            let folder = (!folder.as_ref().is_empty()).then_some(folder);
            let found: Vec<_> = store.list(folder.as_ref()).try_collect().await?;
            let mut names = Vec::new();
            for object in found {
                if let Some(parts) = object.location.prefix_match(&whole) {
                    let parts: Vec<String> = parts.map(|part| part.as_ref().to_owned()).collect();
                    names.push(parts.join("/"));
                }
            }
            names.sort_unstable();
            Ok(names)
        };
        Box::pin(async move { self.run(request).await.map_err(|error| put_error(&error)) })
    }
}

fn get_error(error: &Error) -> StoreError {
    match error {
        Error::NotFound { .. } if !is_about_bucket(error) => StoreError::Missing,
        other => put_error(other),
    }
}

fn put_error(error: &Error) -> StoreError {
    let (whole, text) = (whole_line(error), first_line(error));
    match error {
        Error::AlreadyExists { .. } | Error::Precondition { .. } => StoreError::Exists,
        // Clocks are set sooner or later.
        _ if whole.contains("RequestTimeTooSkewed") => StoreError::Unavailable { text },
        Error::Generic { .. } if is_without_connection(error) => StoreError::Unreachable { text },
        Error::Generic { .. } if !is_refusal(&whole) => StoreError::Unavailable { text },
        _ => StoreError::Refused { text },
    }
}

fn is_about_bucket(error: &Error) -> bool {
    error.to_string().contains("NoSuchBucket")
}

/// Whether no connection to the store could be made, and not for want of an answer.
fn is_without_connection(error: &Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(http) = inner.downcast_ref::<HttpError>() {
            return http.kind() == HttpErrorKind::Connect;
        }
        source = inner.source();
    }
    false
}

/// Whether the store has refused a request for good. The crate keeps the status to itself, but
/// prints it.
fn is_refusal(text: &str) -> bool {
    let Some((_, after)) = text.split_once("status code: 4") else { return false };
    // Too late, too many, or at the same time as another: these may be asked again.
    !["08", "09", "29"].iter().any(|digits| after.starts_with(digits))
}

/// What is wrong with the settings, in one line.
fn setting(error: &Error) -> String {
    let text = whole_line(error);
    if !text.contains("No CA certificates") {
        return first_line(error);
    }
    "there are no certificates of authorities here, which https:// needs: install ca-certificates, \
     or name a file of them (PEM) by SSL_CERT_FILE"
        .to_owned()
}

/// `line` with the code and the message of a document of XML in the place of the document.
fn without_document(line: &str) -> String {
    let of = |name: &str| {
        let (_, after) = line.split_once(&format!("<{name}>"))?;
        after.split_once("</").map(|(text, _)| text)
    };
    let begin = line.find("<?xml").or_else(|| line.find("<Error>"));
    match (begin, of("Code"), of("Message")) {
        (Some(begin), Some(code), Some(message)) => format!("{}{code}: {message}", &line[..begin]),
        _ => line.to_owned(),
    }
}

/// The error in one line of 300 characters at most. What was asked comes first in it, and why it
/// failed last.
fn first_line(error: &Error) -> String {
    let line: Vec<char> = whole_line(error).chars().collect();
    let part = |part: &[char]| part.iter().collect::<String>();
    match line.len() {
        0..=300 => part(&line),
        len => format!("{}…{}", part(&line[..120]), part(&line[len - 179..])),
    }
}

/// The error in one line. Stores answer with whole documents.
fn whole_line(error: &Error) -> String {
    let mut text = match error {
        Error::Generic { source, .. } | Error::PermissionDenied { source, .. } => {
            source.to_string()
        }
        other => other.to_string(),
    };
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    without_document(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_of_a_store_is_its_code_and_message_whatever_the_name_is_as_long_as() {
        let object = "0123456789abcdef".repeat(12);
        let answer = |code: &str, message: &str| {
            let source = format!(
                "Error performing PUT http://s/{object} in 1ms - Server returned non-2xx status \
                 code: 403 Forbidden: <?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>\
                 {code}</Code><Message>{message}</Message><RequestId>7</RequestId></Error>"
            );
            let path = format!("tank/data/{object}");
            put_error(&Error::PermissionDenied { path, source: source.into() })
        };
        let StoreError::Refused { text } = answer("AccessDenied", "Access Denied.") else {
            panic!("it is no refusal");
        };
        assert!(text.ends_with("403 Forbidden: AccessDenied: Access Denied."), "{text}");
        let skewed = answer("RequestTimeTooSkewed", "The difference is too large.");
        assert!(matches!(skewed, StoreError::Unavailable { .. }), "{skewed:?}");
    }

    #[test]
    fn requests_that_may_be_made_again_are_no_refusals() {
        let answer = |status: &str| {
            let text = format!(
                "Error performing DELETE http://s/x in 1ms - Server returned non-2xx status code: \
                 {status}: <?xml version=\"1.0\"?><Error></Error>"
            );
            put_error(&Error::Generic { store: "S3", source: text.into() })
        };
        for status in
            ["408 Request Timeout", "409 Conflict", "429 Too Many Requests", "503 Slow Down"]
        {
            assert!(matches!(answer(status), StoreError::Unavailable { .. }), "{status}");
        }
        for status in ["400 Bad Request", "404 Not Found", "411 Length Required"] {
            assert!(matches!(answer(status), StoreError::Refused { .. }), "{status}");
        }
    }

    // A device that is missing is made anew.
    #[test]
    fn object_is_missing_only_where_its_bucket_is_there() {
        let not_found = |code: &str| {
            let source = format!("404 Not Found: <Error><Code>{code}</Code></Error>").into();
            get_error(&Error::NotFound { path: "tank/device".to_owned(), source })
        };
        assert_eq!(not_found("NoSuchKey"), StoreError::Missing);
        let gone = not_found("NoSuchBucket");
        assert!(matches!(gone, StoreError::Refused { .. }), "{gone:?}");
    }

    #[test]
    fn only_loopback_addresses_are_on_this_machine() {
        for endpoint in
            ["http://127.0.0.1:7070", "http://localhost", "http://[::1]:80/x", "http://127.8.0.9/"]
        {
            assert!(is_on_this_machine(endpoint), "{endpoint}");
        }
        for endpoint in [
            "http://10.0.0.1:7070",
            "http://127.0.0.1@store.example",
            "http://store.example/127.0.0.1",
            "http://127.0.0.1.store.example",
            "http://store.example?@127.0.0.1",
            "127.0.0.1",
            "",
        ] {
            assert!(!is_on_this_machine(endpoint), "{endpoint}");
        }
    }
    #[test]
    fn endpoint_without_a_scheme_is_refused() {
        for endpoint in ["", "http://127.0.0.1:7070", "https://store.example/base"] {
            assert_eq!(check_endpoint(endpoint), Ok(()), "{endpoint}");
        }
        for endpoint in ["store", "10.0.0.2:7070", "localhost:7070", "http://", "ftp://store/"] {
            let text = check_endpoint(endpoint).unwrap_err().to_string();
            assert!(text.contains("begins with https://"), "{text}");
        }
    }

    #[test]
    fn store_is_opened_once_whatever_its_name_is_spelled_like() {
        let folder = std::env::temp_dir().join(format!("forebay-spelled-{}", std::process::id()));
        let again = folder.join("..").join(folder.file_name().unwrap());
        std::fs::create_dir(&folder).unwrap();
        rt::Runtime::real().expect("io_uring").block_on(async move {
            let settings = [("aws_endpoint_url".to_owned(), "http://127.0.0.1:9".to_owned())];
            let bucket = format!("b{}", std::process::id());
            let s3 = |prefix| RemoteStore::s3("s3", (&bucket, prefix), &settings, true);
            let first = s3("tank").unwrap();
            assert!(matches!(s3("/tank"), Err(StoreError::InUse)));
            assert!(matches!(s3("tank/"), Err(StoreError::InUse)));
            drop(first);
            let first = RemoteStore::folder("file", &folder, true).unwrap();
            assert!(matches!(RemoteStore::folder("file", &again, true), Err(StoreError::InUse)));
            drop(first);
            std::fs::remove_dir_all(folder).unwrap();
        });
    }

    // A request whose answer was lost is made again.
    #[test]
    fn what_was_deleted_before_is_passed_over() {
        let folder = std::env::temp_dir().join(format!("forebay-gone-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        rt::Runtime::real().expect("io_uring").block_on(async move {
            let store = RemoteStore::folder("file", &folder, true).unwrap();
            for name in ["a", "b", "c"] {
                store.put(name, vec![IoBuf::zeroed(4096).freeze()], true).await.unwrap();
            }
            store.delete(vec!["b".to_owned()]).await.unwrap();
            let all = ["a", "b", "c"].map(str::to_owned).to_vec();
            store.delete(all).await.unwrap();
            assert_eq!(store.list("").await.unwrap(), Vec::<String>::new());
            std::fs::remove_dir_all(folder).unwrap();
        });
    }

    // A mount that is gone leaves its empty folder behind.
    #[test]
    fn objects_go_to_no_other_folder_in_the_place_of_the_one_that_was_opened() {
        let root = std::env::temp_dir().join(format!("forebay-moved-{}", std::process::id()));
        let (folder, away) = (root.join("store"), root.join("away"));
        std::fs::create_dir_all(&folder).unwrap();
        rt::Runtime::real().expect("io_uring").block_on(async move {
            let store = RemoteStore::folder("file", &folder, true).unwrap();
            let data = || vec![IoBuf::zeroed(4096).freeze()];
            store.put("a", data(), true).await.unwrap();
            std::fs::rename(&folder, &away).unwrap();
            for is_there in [false, true] {
                if is_there {
                    std::fs::create_dir(&folder).unwrap();
                }
                let outcomes = [
                    store.put("b", data(), true).await,
                    store.get("a", None).await.map(|_| ()),
                    store.delete(vec!["a".to_owned()]).await,
                    store.list("").await.map(|_| ()),
                ];
                let path = folder.display().to_string();
                let begins = if is_there { "another folder is in the place" } else { &path };
                for outcome in outcomes {
                    let Err(StoreError::Unavailable { text }) = outcome else {
                        panic!("{outcome:?}");
                    };
                    assert!(text.starts_with(begins), "{text}");
                }
                let found = std::fs::read_dir(&folder).map_or(0, Iterator::count);
                assert!(folder.exists() == is_there && found == 0);
            }
            std::fs::remove_dir(&folder).unwrap();
            std::fs::rename(&away, &folder).unwrap();
            store.put("b", data(), true).await.unwrap();
            assert_eq!(store.list("").await.unwrap(), ["a", "b"]);
            drop(store);
            std::fs::remove_dir_all(root).unwrap();
        });
    }
}
