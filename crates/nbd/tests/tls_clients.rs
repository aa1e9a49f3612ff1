//! TLS clients of other projects (GnuTLS in libnbd and in QEMU) against this server, and this
//! client over real sockets. A test whose tool is missing or has no TLS prints that it is skipped.

#![allow(clippy::disallowed_methods, reason = "real clients need real files and processes")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

use forebay_device::{BlockDevice, IoBuf, MemoryDevice};
use forebay_nbd::wire::reply;
use forebay_nbd::{
    AllowList, Client, ClientError, FixedExports, Limits, Server, TlsConfig, TlsFiles,
};
use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// The path of the system's Python, which has the module of nbdsh.
const SYSTEM_PATH: &str = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";

/// Folders with the file names that all NBD clients use; removed at the end of the test.
struct Keys(PathBuf);

impl Keys {
    /// A server, `me` and `other` of one CA, and `stranger` of another CA with the same name.
    fn new(name: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let keys = Self(root.join(format!("tls-{name}-{}", std::process::id())));
        let make = |to: &[(&str, &str)]| {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name.push(DnType::CommonName, "the authority");
            let key = KeyPair::generate().unwrap();
            let ca = params.self_signed(&key).unwrap().pem();
            let issuer = Issuer::new(params, key);
            for (folder, kind) in to {
                let path = keys.0.join(folder);
                std::fs::create_dir_all(&path).unwrap();
                let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
                let mut params = CertificateParams::new(names).unwrap();
                params.distinguished_name.push(DnType::CommonName, *folder);
                let key = KeyPair::generate().unwrap();
                let cert = params.signed_by(&key, &issuer).unwrap();
                std::fs::write(path.join("ca-cert.pem"), &ca).unwrap();
                std::fs::write(path.join(format!("{kind}-cert.pem")), cert.pem()).unwrap();
                std::fs::write(path.join(format!("{kind}-key.pem")), key.serialize_pem()).unwrap();
            }
        };
        make(&[("server", "server"), ("me", "client"), ("other", "client")]);
        make(&[("stranger", "client")]);
        // `keyless` trusts the server's CA without a certificate of its own; so does `stranger`,
        // whose certificate is of another CA.
        std::fs::create_dir_all(keys.0.join("keyless")).unwrap();
        let copy = |from: &str, to: &str| {
            std::fs::copy(keys.0.join(from), keys.0.join(to)).unwrap();
        };
        copy("server/ca-cert.pem", "keyless/ca-cert.pem");
        copy("server/ca-cert.pem", "stranger/ca-cert.pem");
        keys
    }

    fn folder(&self, who: &str) -> String {
        self.0.join(who).display().to_string()
    }

    fn config(&self) -> TlsConfig {
        let path = |file: &str| self.0.join("server").join(file);
        let files = TlsFiles {
            cert: path("server-cert.pem"),
            key: path("server-key.pem"),
            client_ca: Some(path("ca-cert.pem")),
            allow: None,
        };
        let list = AllowList::parse("[allow]\nme = [\"tank/*\"]\n").unwrap();
        TlsConfig::read(&files).unwrap().with_allow_list(list).unwrap()
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn skipped(why: &str) {
    // The test harness would capture the output of a macro.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED: {why}\n");
}

/// Runs a command without blocking the server on this thread: whether it succeeded, and its output.
async fn command(line: &[&str]) -> (bool, String) {
    let line: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
    rt::compute(Nanos::ZERO, move || {
        let mut command = Command::new("env");
        let output = command.arg(SYSTEM_PATH).args(&line).stdin(Stdio::null()).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    })
    .await
}

/// Runs `test` with the port of a server that accepts `me` and `other`, and lets only `me` open an
/// export.
fn with_server<F: Future<Output = ()> + 'static>(
    name: &str,
    test: impl FnOnce(String, Rc<Keys>) -> F + 'static,
) {
    let keys = Rc::new(Keys::new(name));
    Runtime::real().expect("io_uring").block_on(async move {
        let exports =
            FixedExports::new().with("tank/vol", Rc::new(MemoryDevice::new("m", 16 << 20)));
        let server = Server::with_tls(Rc::new(exports), Limits::default(), keys.config());
        let address = server.listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = address.rsplit(':').next().unwrap().to_owned();
        test(port, keys).await;
        assert_eq!(server.stop(Nanos::from_secs(5)).await, 0);
        assert_eq!(server.connections(), 0);
    });
}

#[test]
fn own_client_works_over_tcp() {
    with_server("own", |port, keys| async move {
        let uri = |who: &str| {
            format!("nbds://127.0.0.1:{port}/tank/vol?tls-certificates={}", keys.folder(who))
        };
        let client = Client::connect(&uri("me")).await.unwrap();
        let mut data = IoBuf::zeroed(3 << 20);
        data.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 5) as u8);
        let data = data.freeze();
        client.write(1 << 20, data.clone(), true).await.unwrap();
        let back = client.read(1 << 20, IoBuf::zeroed(3 << 20)).await.unwrap();
        assert!(back[..] == data[..]);
        client.close().await;
        for who in ["other", "stranger", "keyless"] {
            let outcome = Client::connect(&uri(who)).await;
            assert!(outcome.is_err(), "{who} was accepted");
        }
        let plain = Client::connect(&format!("nbd://127.0.0.1:{port}/tank/vol")).await;
        let Err(ClientError::Refused { error, .. }) = plain else { panic!("not refused") };
        assert_eq!(error.kind, reply::ERR_TLS_REQD);
    });
}

#[test]
fn libnbd_works_over_tcp() {
    with_server("libnbd", |port, keys| async move {
        let (works, out) = command(&["nbdsh", "-c", "print(h.supports_tls())"]).await;
        if !works || !out.contains("True") {
            return skipped("nbdsh is not installed, or has no TLS");
        }
        let uri = format!("nbds://127.0.0.1:{port}/tank/vol");
        let script = |who: &str, body: &str| {
            let folder = keys.folder(who);
            format!(
                "h.set_tls(nbd.TLS_REQUIRE)\nh.set_tls_certificates({folder:?})\n\
                 h.set_uri_allow_local_file(True)\nh.connect_uri({uri:?})\n{body}"
            )
        };
        let body = "assert h.get_tls_negotiated()\nassert h.get_structured_replies_negotiated()\n\
                    data = bytes(range(256)) * 8192\nh.pwrite(data, 4096, nbd.CMD_FLAG_FUA)\n\
                    assert h.pread(len(data), 4096) == data\nh.flush()\nh.shutdown()\n";
        let (works, out) = command(&["nbdsh", "-c", &script("me", body)]).await;
        assert!(works, "{out}");
        for who in ["other", "stranger", "keyless"] {
            let (works, out) = command(&["nbdsh", "-c", &script(who, body)]).await;
            assert!(!works, "{who} was accepted: {out}");
        }
        let plain = format!("h.connect_uri(\"nbd://127.0.0.1:{port}/tank/vol\")");
        let (works, out) = command(&["nbdsh", "-c", &plain]).await;
        assert!(!works, "plain text was accepted: {out}");
    });
}

#[test]
fn qemu_io_works_over_tcp() {
    with_server("qemu", |port, keys| async move {
        let (works, _) = command(&["qemu-io", "--version"]).await;
        if !works {
            return skipped("qemu-io is not installed");
        }
        let image = format!("driver=nbd,host=127.0.0.1,port={port},export=tank/vol,tls-creds=t");
        let run = async |who: &str| {
            let object = format!("tls-creds-x509,id=t,endpoint=client,dir={}", keys.folder(who));
            let write = ["-c", "write -P 0x5a -f 1M 2M", "-c", "read -P 0x5a 1M 2M", "-c", "flush"];
            let head = ["qemu-io", "--object", &object, "--image-opts", &image, "-t", "none"];
            command(&[&head[..], &write[..]].concat()).await
        };
        let (works, out) = run("me").await;
        if out.contains("TLS credentials support requires GNUTLS") {
            return skipped("qemu-io was built without GnuTLS");
        }
        assert!(works && out.contains("read 2097152/2097152") && !out.contains("ailed"), "{out}");
        for who in ["other", "stranger", "keyless"] {
            let (works, out) = run(who).await;
            assert!(!works && !out.contains("read 2097152"), "{who} was accepted: {out}");
        }
    });
}
