use forebay_rt::Runtime;
use forebay_rt::net;

use super::*;

/// Says what it was asked for.
fn site() -> Site {
    Rc::new(|request| {
        let Request { path, query, .. } = request;
        let host = request.header("host").unwrap_or("-");
        let body = format!("{path} {query} {host}");
        Response::ok("text/plain", body).with_header("X-Test", "yes")
    })
}

fn said(head: &str) -> String {
    String::from_utf8(reply_to(head, &site())).unwrap()
}

#[test]
fn a_request_is_taken_apart() {
    let text = said("GET /a?b=c HTTP/1.1\r\nHOST:  x \r\nno header\r\nOther: y");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"), "{text}");
    assert!(text.contains("Content-Length: 8\r\nConnection: close\r\nX-Test: yes\r\n\r\n"));
    assert!(text.ends_with("\r\n\r\n/a b=c x"), "{text}");
    let head = said("HEAD / HTTP/1.1");
    assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn what_is_no_request_for_a_page_is_refused() {
    for (head, status) in [
        ("POST /metrics HTTP/1.1", "405"),
        ("GET /metrics", "400"),
        ("", "400"),
        ("\u{fffd}\u{fffd} \u{fffd} \u{fffd}", "400"),
    ] {
        assert!(said(head).starts_with(&format!("HTTP/1.1 {status} ")), "{head:?}");
    }
}

#[test]
fn a_slow_or_endless_client_loses_its_connection() {
    Runtime::simulated(1).block_on(async {
        for bytes in [&b"GET /metrics HT"[..], &[b'x'; 3 * HEAD_BYTES][..]] {
            let (client, server) = net::pair();
            let connections = Rc::new(Connections::default());
            connections.admit(server, &site());
            let begun = rt::now();
            let _ = client.send_all(bytes.to_vec()).await;
            let (received, _) = client.recv(vec![0; 16], 0).await;
            assert!(!received.is_ok_and(|bytes| bytes > 0), "it gets no answer");
            assert!(rt::now() <= begun + CLIENT_TIMEOUT);
            rt::sleep(Nanos::from_millis(1)).await;
            assert_eq!(connections.count.get(), 0);
        }
    });
}

#[test]
fn a_head_that_comes_in_pieces_is_read() {
    Runtime::simulated(1).block_on(async {
        let (client, server) = net::pair();
        Rc::new(Connections::default()).admit(server, &site());
        for piece in ["GET /x HT", "TP/1.1\r", "\n\r", "\n"] {
            client.send_all(piece.as_bytes().to_vec()).await.0.unwrap();
            rt::sleep(Nanos::from_millis(5)).await;
        }
        let mut text = Vec::new();
        loop {
            let (received, buf) = client.recv(vec![0; 4096], 0).await;
            match received.unwrap() {
                0 => break,
                bytes => text.extend_from_slice(&buf[..bytes]),
            }
        }
        assert!(String::from_utf8(text).unwrap().ends_with("\r\n\r\n/x  -"));
    });
}

#[test]
fn the_longest_silent_client_makes_room_for_another() {
    Runtime::simulated(1).block_on(async {
        let connections = Rc::new(Connections::default());
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let (client, server) = net::pair();
            connections.admit(server, &site());
            silent.push(client);
            rt::sleep(Nanos::from_millis(1)).await;
        }
        let begun = rt::now();
        let (client, server) = net::pair();
        connections.admit(server, &site());
        let (received, _) = silent[0].recv(vec![0; 16], 0).await;
        assert_eq!(received.unwrap(), 0, "the first was ended");
        client.send_all(b"GET / HTTP/1.1\r\n\r\n".to_vec()).await.0.unwrap();
        let (received, _) = client.recv(vec![0; 4096], 0).await;
        assert!(received.unwrap() > 0, "the further one is answered");
        assert!(rt::now() < begun + CLIENT_TIMEOUT);
    });
}
