//! A scratch folder for the binary, and ways to run it.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

/// A folder with a state folder of its own; removed when it is dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        // On the disk of the build: /tmp may be memory, which has no O_DIRECT.
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Starts `command` with its output in the file `log` ([`Scratch::log_says`]).
    pub fn spawn_logged(&self, mut command: Command) -> Running {
        let mut options = std::fs::OpenOptions::new();
        let log = options.create_new(true).append(true).open(self.0.join("log")).unwrap();
        self.spawn(command.stdout(log.try_clone().unwrap()).stderr(log))
    }

    /// Whether a line like this appears in the log within half a minute.
    pub fn log_says(&self, line: &str) -> bool {
        let look = "for i in $(seq 300); do grep -q \"$1\" log && exit 0; sleep 0.1; done; exit 1";
        let mut shell = Command::new("sh");
        shell.args(["-c", look, "sh", line]).current_dir(&self.0).status().unwrap().success()
    }

    /// The same with these files, each as small as a device may be.
    pub fn with_devices(name: &str, files: &[&str]) -> Self {
        let scratch = Self::new(name);
        files.iter().for_each(|file| scratch.file(file, 64 << 20));
        scratch
    }

    /// Moves files to another folder.
    pub fn hide(&self, files: &[&str]) {
        std::fs::create_dir_all(self.0.join("hidden")).unwrap();
        for file in files {
            std::fs::rename(self.0.join(file), self.0.join("hidden").join(file)).unwrap();
        }
    }

    /// Moves them back.
    pub fn show(&self, files: &[&str]) {
        for file in files {
            std::fs::rename(self.0.join("hidden").join(file), self.0.join(file)).unwrap();
        }
    }

    pub fn state(&self) -> PathBuf {
        // Short: the path of a Unix socket has 107 bytes at most.
        let name = self.0.file_name().unwrap().to_str().unwrap();
        std::env::temp_dir().join(format!("fb-{name}"))
    }

    pub fn file(&self, name: &str, len_bytes: u64) {
        let file = std::fs::OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(self.0.join(name))
            .unwrap();
        file.set_len(len_bytes).unwrap();
    }

    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command
            .args(words.split_whitespace())
            .current_dir(&self.0)
            .env("FOREBAY_STATE_DIR", self.state());
        command
    }

    /// Runs the command to its end. A command that serves instead of failing is killed after two
    /// minutes: then there is no exit code.
    pub fn forebay(&self, words: &str) -> Output {
        let mut child = self
            .command(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().to_string();
        let (done, over) = std::sync::mpsc::channel::<()>();
        #[allow(clippy::disallowed_methods, reason = "a watchdog beside a blocking wait")]
        let watchdog = std::thread::spawn(move || {
            let late = over.recv_timeout(std::time::Duration::from_secs(120));
            if late == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-KILL", &pid]).status();
            }
        });
        let mut output = Output { status: ExitStatus::default(), stdout: vec![], stderr: vec![] };
        // What is printed is short: neither pipe fills up while the other is read.
        child.stdout.take().unwrap().read_to_end(&mut output.stdout).unwrap();
        child.stderr.take().unwrap().read_to_end(&mut output.stderr).unwrap();
        output.status = child.wait().unwrap();
        drop(done);
        watchdog.join().unwrap();
        output
    }

    /// Runs a command that must succeed. Returns its output.
    pub fn run(&self, words: &str) -> String {
        let output = self.forebay(words);
        assert!(
            output.status.success(),
            "forebay {words}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        text(&output)
    }

    /// Runs a command that must fail with this exit code and a line with `hint`.
    pub fn refused(&self, words: &str, code: i32, hint: &str) {
        let output = self.forebay(words);
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words}: {line}");
        assert_eq!(line.matches('\n').count(), 1, "{words}: one line, not\n{line}");
        let is_failure = line.starts_with("forebay: ") || line.contains(" error: ");
        assert!(is_failure, "{words}: {line}");
        assert!(line.contains(hint), "{words}: no '{hint}' in: {line}");
        let printed = String::from_utf8(output.stdout).unwrap();
        if words.split_whitespace().any(|word| word == "--json") {
            let json: serde_json::Value = serde_json::from_str(&printed).unwrap();
            assert!(json["error"]["code"].is_string(), "{words}: {printed}");
        } else {
            assert_eq!(printed, "", "{words}: nothing on standard output");
        }
    }

    /// The same for a server that may print something before it fails.
    pub fn refused_late(&self, words: &str, hint: &str) {
        let output = self.forebay(words);
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words}: {line}");
        assert_eq!(line.matches('\n').count(), 1, "{words}: one line, not\n{line}");
        assert!(line.contains(hint), "{words}: no '{hint}' in: {line}");
    }

    /// `pool status` of a pool that cannot be opened, with `hint` as the reason.
    pub fn unavailable(&self, words: &str, hint: &str) -> String {
        let output = self.forebay(words);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words}: {text}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("\n state: UNAVAIL\n"), "{words}: {text}");
        let words_of = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words_of(&text).contains(&words_of(hint)), "{words}: no '{hint}' in\n{text}");
        text
    }

    /// Starts `command` in a guard that kills it.
    pub fn spawn(&self, command: &mut Command) -> Running {
        Running(Some(command.spawn().unwrap()))
    }

    /// Starts a server and waits until it says that it is ready.
    pub fn server(&self, words: &str) -> Server {
        self.server_of(self.command(words))
    }

    /// The same of a server without a controlling terminal.
    pub fn server_without_terminal(&self, words: &str) -> Server {
        let server = self.command(words);
        let mut command = Command::new("setsid");
        command.arg(server.get_program()).args(server.get_args()).current_dir(&self.0);
        command.env("FOREBAY_STATE_DIR", self.state());
        self.server_of(command)
    }

    fn server_of(&self, mut command: Command) -> Server {
        let mut child = self.spawn(command.stdout(Stdio::piped()));
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut server = Server { lines, child, said: Vec::new() };
        server.said = server.read_until("ready: ");
        server
    }

    /// The URI of a volume on the default Unix socket.
    pub fn uri(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.state().join("nbd.sock").display())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        let _ = std::fs::remove_dir_all(self.state());
    }
}

/// Standard output of a command that succeeded.
pub fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A running process, killed when it is dropped: a test that fails leaves none.
pub struct Running(Option<Child>);

impl Running {
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for its end. Returns its output where that is piped.
    pub fn finish(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl std::ops::Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.0.as_ref().unwrap()
    }
}

impl std::ops::DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A running server; killed when dropped.
pub struct Server {
    child: Running,
    lines: BufReader<ChildStdout>,
    /// Its lines until it was ready.
    pub said: Vec<String>,
}

impl Server {
    /// Reads lines up to the one that begins like this, without time and level.
    pub fn read_until(&mut self, beginning: &str) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            let mut line = String::new();
            let got = self.lines.read_line(&mut line).unwrap();
            assert!(got > 0, "it ended without '{beginning}', after {seen:#?}");
            let line = line.split_once(" info: ").map_or(line.as_str(), |(_, rest)| rest);
            let found = line.starts_with(beginning);
            seen.push(line.trim_end().to_owned());
            if found {
                return seen;
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        self.child.signal(name);
    }

    /// Interrupts it and waits for its end.
    pub fn interrupt(self) -> ExitStatus {
        self.end("-INT")
    }

    /// Sends it this signal and waits for its end.
    pub fn end(mut self, signal: &str) -> ExitStatus {
        self.signal(signal);
        self.child.wait().unwrap()
    }

    /// Waits for its end.
    pub fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Kills it without warning.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
