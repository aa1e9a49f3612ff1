use forebay_units::Nanos;

use crate::{Runtime, net, sleep, spawn, sys};

/// A listening socket of a service manager, and its path.
fn managed_socket(name: &str) -> (std::os::fd::OwnedFd, std::path::PathBuf) {
    let path = std::env::temp_dir().join(format!("forebay-{name}-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    (std::os::unix::net::UnixListener::bind(&path).unwrap().into(), path)
}

#[test]
fn client_that_inherited_listener_has_not_taken_waits_for_the_next_one() {
    let (fd, path) = managed_socket("inherited");
    let next = fd.try_clone().unwrap();
    Runtime::real().unwrap().block_on(async move {
        let listener = std::rc::Rc::new(net::Listener::inherited(fd).unwrap());
        assert_eq!(listener.address(), format!("unix:{}", path.display()));
        let early = net::Stream::connect_unix(&path).await.unwrap();
        let accepted = listener.accept().await.unwrap();
        assert_eq!(accepted.peer_uid(), Some(sys::effective_uid()));
        let waiting = listener.clone();
        let waiting = spawn(async move { waiting.accept().await.is_err() });
        sleep(Nanos::from_millis(5)).await;
        listener.shutdown();
        assert!(waiting.await, "accept goes on after the end");
        drop((early, accepted, listener));
        // The manager's socket lives, and so does the path.
        let late = net::Stream::connect_unix(&path).await.unwrap();
        late.send_all(b"late".to_vec()).await.0.unwrap();
        let listener = net::Listener::inherited(next).unwrap();
        let accepted = listener.accept().await.unwrap();
        assert_eq!(accepted.recv_exact(vec![0; 4], 0).await.1, b"late");
        drop(listener);
        assert!(path.exists());
        std::fs::remove_file(&path).unwrap();
    });
}

#[test]
fn inherited_file_that_does_not_listen_is_refused() {
    let (one, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
    assert!(net::Listener::inherited(one.into()).is_err());
    assert!(net::Listener::inherited(sys::event_fd().unwrap().into()).is_err());
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", tcp.local_addr().unwrap());
    assert_eq!(net::Listener::inherited(tcp.into()).unwrap().address(), address);
}

#[test]
fn end_of_the_other_side_is_seen_before_what_it_sent_was_received() {
    let (fd, path) = managed_socket("hangup");
    Runtime::real().unwrap().block_on(async move {
        let listener = net::Listener::inherited(fd).unwrap();
        let far = net::Stream::connect_unix(&path).await.unwrap();
        let near = listener.accept().await.unwrap();
        far.send_all(b"last".to_vec()).await.0.unwrap();
        assert!(!near.has_hung_up());
        let second = far.second().unwrap();
        drop(far);
        assert!(!near.has_hung_up(), "the second stream holds the socket");
        second.shutdown();
        assert!(near.has_hung_up());
        assert_eq!(near.recv_exact(vec![0; 4], 0).await.1, b"last");
        std::fs::remove_file(&path).unwrap();
    });
}

// The kernel waits for the rest of a piece, also when the stream ends or is shut down within it.
#[test]
fn exact_receive_ends_with_the_stream() {
    let (fd, path) = managed_socket("exact");
    Runtime::real().unwrap().block_on(async move {
        let listener = net::Listener::inherited(fd).unwrap();
        for is_shut_down in [false, true] {
            let far = net::Stream::connect_unix(&path).await.unwrap();
            let near = std::rc::Rc::new(listener.accept().await.unwrap());
            let receiver = near.clone();
            let receiving = spawn(async move { receiver.recv_exact(vec![0; 1 << 20], 0).await });
            for _ in 0..3 {
                far.send_all(vec![7; 100_000]).await.0.unwrap();
                sleep(Nanos::from_millis(2)).await;
            }
            assert!(!receiving.is_finished());
            if is_shut_down {
                near.shutdown_receive();
            } else {
                drop(far);
            }
            let (outcome, got) = receiving.await;
            assert_eq!(outcome.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
            assert!(got[..300_000].iter().all(|byte| *byte == 7) && got[300_000] == 0);
            assert_eq!(near.moved_bytes(), 300_000);
        }
        std::fs::remove_file(&path).unwrap();
    });
}
