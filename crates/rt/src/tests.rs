use super::*;
use forebay_units::Nanos;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

fn both(test: impl Fn() -> futures_util::future::LocalBoxFuture<'static, ()>) {
    Runtime::simulated(7).block_on(test());
    Runtime::real().expect("io_uring").block_on(test());
}

#[test]
fn tasks_timers_and_channels_work_on_both_drivers() {
    both(|| {
        Box::pin(async {
            let begun = now();
            let order = Rc::new(RefCell::new(Vec::new()));
            let handles: Vec<_> = [3u64, 1, 2]
                .into_iter()
                .map(|ms| {
                    let order = order.clone();
                    spawn(async move {
                        sleep(Nanos::from_millis(ms * 5)).await;
                        order.borrow_mut().push(ms);
                        ms
                    })
                })
                .collect();
            let sum: u64 = join_all(handles).await.into_iter().sum();
            assert_eq!(sum, 6);
            assert_eq!(*order.borrow(), [1, 2, 3]);
            assert!(now().since(begun) >= Nanos::from_millis(15));
            let timed = timeout(Nanos::from_millis(1), std::future::pending::<()>()).await;
            assert_eq!(timed, Err(Elapsed));
            assert_eq!(compute(Nanos(5), || 6 * 7).await, 42);
        })
    });
}

#[test]
fn order_follows_from_seed() {
    let run = |seed| {
        let order = Rc::new(RefCell::new(Vec::new()));
        let out = order.clone();
        Runtime::simulated(seed).block_on(async move {
            let handles: Vec<_> = (0..20)
                .map(|i| {
                    let order = order.clone();
                    spawn(async move {
                        for _ in 0..3 {
                            yield_now().await;
                        }
                        order.borrow_mut().push(i);
                    })
                })
                .collect();
            join_all(handles).await;
        });
        Rc::try_unwrap(out).unwrap().into_inner()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn halt_stops_at_once_and_drop_drops_every_task() {
    struct Bell(Rc<Cell<u32>>);
    impl Drop for Bell {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let dropped = Rc::new(Cell::new(0));
    let runtime = Runtime::simulated(1);
    let bells = dropped.clone();
    let out = runtime.run(async move {
        for _ in 0..5 {
            let bell = Bell(bells.clone());
            spawn(async move {
                let _bell = bell;
                std::future::pending::<()>().await;
            });
        }
        sleep(Nanos(10)).await;
        halt();
        std::future::pending::<()>().await;
    });
    assert!(out.is_none());
    assert_eq!(dropped.get(), 0);
    drop(runtime);
    assert_eq!(dropped.get(), 5);
}

#[test]
fn deadlock_panics_under_simulation_and_is_told_apart() {
    let stuck = Runtime::simulated(1);
    let wait = AssertUnwindSafe(|| stuck.block_on(std::future::pending::<()>()));
    assert!(catch_unwind(wait).is_err() && stuck.is_deadlocked());
    let failed = Runtime::simulated(1);
    let fail = AssertUnwindSafe(|| failed.block_on(async { panic!("of a task") }));
    assert!(catch_unwind(fail).is_err() && !failed.is_deadlocked());
}

#[test]
fn semaphore_serves_in_order_after_waiter_is_dropped() {
    both(|| {
        Box::pin(async {
            let semaphore = sync::Semaphore::new(4);
            let held = semaphore.acquire(3).await;
            let gone = timeout(Nanos::from_millis(1), semaphore.acquire(4)).await;
            assert!(gone.is_err());
            let big = spawn({
                let semaphore = semaphore.clone();
                async move { drop(semaphore.acquire(4).await) }
            });
            yield_now().await;
            sleep(Nanos(10)).await;
            assert!(semaphore.try_acquire(1).is_none(), "overtook a waiter");
            drop(held);
            big.await;
            assert_eq!(semaphore.available(), 4);
        })
    });
}

#[test]
fn wakes_from_other_threads_are_not_lost() {
    Runtime::real().expect("io_uring").block_on(async {
        for round in 0..2_000u64 {
            assert_eq!(compute(Nanos(0), move || round).await, round);
        }
        let many = (0..500u64).map(|i| compute(Nanos(0), move || i));
        let sum: u64 = join_all(many).await.into_iter().sum();
        assert_eq!(sum, 499 * 500 / 2);
    });
}

#[test]
fn operation_that_blocks_its_submission_holds_up_no_other() {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    let runtime = Runtime::real().expect("io_uring");
    runtime.block_on(async {
        // A read of an empty pipe sleeps in the submission when a worker submits it.
        let mut pipes: Vec<_> = (0..32).map(|_| std::io::pipe().unwrap()).collect();
        let reads = pipes.iter().map(|(from, _)| {
            let mut buf = vec![0u8; 8];
            let fd = io_uring::types::Fd(from.as_raw_fd());
            let entry = io_uring::opcode::Read::new(fd, buf.as_mut_ptr(), 8).build();
            // SAFETY: the entry points into `buf`, which is kept.
            spawn(unsafe { uring::submit_aside(entry, buf) })
        });
        let reads: Vec<_> = reads.collect();
        let begun = now();
        sleep(Nanos::from_millis(1)).await;
        let (near, far) = (compute(Nanos(0), || 1).await, compute(Nanos(0), || 2).await);
        assert_eq!(near + far, 3);
        assert!(reads.iter().all(|read| !read.is_finished()));
        for (_, into) in &mut pipes {
            into.write_all(b"from now").unwrap();
        }
        for (outcome, buf) in join_all(reads).await {
            assert_eq!((outcome.unwrap(), &buf[..]), (8, &b"from now"[..]));
        }
        assert!(now() > begun);
    });
    assert_eq!(runtime.finish(), 0, "nothing is left behind");
}

#[test]
fn simulated_pair_keeps_byte_order() {
    Runtime::simulated(3).block_on(async {
        let (a, b) = net::pair();
        let sent: Vec<u8> = (0..1_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
        let expected = sent.clone();
        let sender = spawn(async move {
            let (outcome, _) = a.send_all(sent).await;
            outcome.unwrap();
        });
        let (outcome, got) = b.recv_exact(vec![0; expected.len()], 0).await;
        outcome.unwrap();
        assert!(got == expected);
        sender.await;
        let (end, _) = b.recv(vec![0; 8], 0).await;
        assert_eq!(end.unwrap(), 0, "the other side has closed");
    });
}

#[test]
fn unix_socket_round_trip_after_canceled_receive() {
    let dir = std::env::temp_dir().join(format!("forebay-rt-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("s.sock");
    Runtime::real().expect("io_uring").block_on({
        let path = path.clone();
        async move {
            let listener = net::Listener::bind_unix(&path, 0o600).unwrap();
            assert!(net::Listener::bind_unix(&path, 0o600).is_err(), "a live socket was stolen");
            let server = spawn(async move {
                // The check above connected once, and sent nothing.
                drop(listener.accept().await.unwrap());
                let stream = listener.accept().await.unwrap();
                assert_eq!(stream.peer_uid(), Some(sys::effective_uid()));
                let (outcome, got) = stream.recv_exact(vec![0; 5], 0).await;
                outcome.unwrap();
                let (outcome, _) = stream.send_all(got).await;
                outcome.unwrap();
            });
            let stream = net::Stream::connect_unix(&path).await.unwrap();
            let early = timeout(Nanos::from_millis(2), stream.recv(vec![0; 64], 0)).await;
            assert!(early.is_err(), "nothing was sent yet");
            stream.send_all(b"hello".to_vec()).await.0.unwrap();
            let (outcome, got) = stream.recv_exact(vec![0; 5], 0).await;
            outcome.unwrap();
            assert_eq!(got, b"hello");
            server.await;
        }
    });
    assert!(!path.exists(), "the listener leaves its path behind");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn send_larger_than_socket_buffer_arrives_whole() {
    let dir = std::env::temp_dir().join(format!("forebay-rt-large-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("s.sock");
    Runtime::real().expect("io_uring").block_on(async move {
        let listener = net::Listener::bind_unix(&path, 0o600).unwrap();
        let accepted = spawn(async move { listener.accept().await.unwrap() });
        let sender = net::Stream::connect_unix(&path).await.unwrap();
        let receiver = accepted.await;
        let sent: Vec<u8> = (0..8_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
        let expected = sent.clone();
        // Without a receiver the plain call takes what fits; the ring sends the rest.
        let sending = spawn(async move { sender.send_all(sent).await.0.map(|()| sender) });
        sleep(Nanos::from_millis(5)).await;
        assert!(!sending.is_finished(), "8 MB fit into a socket");
        let (outcome, got) = receiver.recv_exact(vec![0; expected.len()], 0).await;
        outcome.unwrap();
        assert!(got == expected);
        let sender = sending.await.unwrap();
        // The receiver has gone: this is an error, not a signal.
        drop(receiver);
        assert!(sender.send_all(vec![0; 1 << 20]).await.0.is_err());
        let _ = std::fs::remove_dir_all(path.parent().unwrap());
    });
}

async fn check_half_shutdown(a: net::Stream, b: net::Stream) {
    let waiting = spawn(async move {
        let (outcome, got) = a.recv_exact(vec![0; 4], 0).await;
        outcome.unwrap();
        assert_eq!(got, b"last");
        a.shutdown_receive();
        let (end, _) = a.recv(vec![0; 8], 0).await;
        assert_eq!(end.unwrap(), 0);
        a.send_all(b"answer".to_vec()).await.0.unwrap();
        a
    });
    b.send_all(b"last".to_vec()).await.0.unwrap();
    let (outcome, got) = b.recv_exact(vec![0; 6], 0).await;
    outcome.unwrap();
    assert_eq!(got, b"answer");
    waiting.await;
}

#[test]
fn half_shutdown_leaves_other_direction_open() {
    Runtime::simulated(1).block_on(async {
        let (a, b) = net::pair();
        check_half_shutdown(a, b).await;
    });
    Runtime::real().unwrap().block_on(async {
        let listener = net::Listener::bind_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address().trim_start_matches("tcp:").parse().unwrap();
        let accepted = spawn(async move { listener.accept().await.unwrap() });
        let b = net::Stream::connect_tcp(address).await.unwrap();
        let a = accepted.await;
        assert!(a.peer().starts_with("127.0.0.1:"), "{}", a.peer());
        assert_eq!(a.peer_uid(), Some(sys::effective_uid()));
        assert!(a.peer_ip().is_some_and(|address| address.is_loopback()));
        check_half_shutdown(a, b).await;
    });
}

#[test]
fn listener_shutdown_ends_accept() {
    let dir = std::env::temp_dir().join(format!("forebay-rt-stop-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("s.sock");
    Runtime::real().unwrap().block_on(async move {
        let tcp = net::Listener::bind_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let unix = net::Listener::bind_unix(&path, 0o600).unwrap();
        for listener in [Rc::new(tcp), Rc::new(unix)] {
            let waiting = listener.clone();
            let accepting = spawn(async move { waiting.accept().await.is_err() });
            sleep(Nanos::from_millis(2)).await;
            assert!(!accepting.is_finished());
            listener.shutdown();
            assert!(accepting.await);
        }
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn signals_are_delivered_and_do_not_kill() {
    Runtime::real().unwrap().block_on(async {
        let signals = signal::Signals::interrupts().unwrap();
        for which in [libc::SIGTERM, libc::SIGINT] {
            let early = timeout(Nanos::from_millis(2), signals.next()).await;
            assert!(early.is_err(), "no signal has been sent");
            // SAFETY: no pointers; the signal is blocked in this thread.
            unsafe { libc::raise(which) };
            assert_eq!(signals.next().await.unwrap().number, which);
        }
    });
}

#[test]
fn detached_task_runs() {
    both(|| {
        Box::pin(async {
            let done = Rc::new(Cell::new(false));
            let seen = done.clone();
            spawn_detached(Box::pin(async move {
                yield_now().await;
                seen.set(true);
            }));
            sleep(Nanos::from_millis(1)).await;
            assert!(done.get());
        })
    });
}

#[test]
fn priority_wakes_run_first_without_starving_others() {
    Runtime::real().expect("io_uring").block_on(async {
        let order = Rc::new(RefCell::new(Vec::new()));
        let wakers = Rc::new(RefCell::new(Vec::new()));
        let tasks = (0..6).map(|i| {
            let (order, wakers) = (order.clone(), wakers.clone());
            spawn(async move {
                let mut waited = false;
                std::future::poll_fn(|cx| {
                    if std::mem::replace(&mut waited, true) {
                        return std::task::Poll::Ready(());
                    }
                    wakers.borrow_mut().push(cx.waker().clone());
                    std::task::Poll::Pending
                })
                .await;
                order.borrow_mut().push(i);
            })
        });
        let tasks: Vec<_> = tasks.collect();
        while wakers.borrow().len() < 6 {
            yield_now().await;
        }
        for (i, waker) in wakers.take().into_iter().enumerate() {
            if i < 3 { waker.wake() } else { executor::wake_first(waker) }
        }
        join_all(tasks).await;
        assert_eq!(*order.borrow(), [3, 0, 4, 1, 5, 2]);
    });
}

#[test]
fn more_operations_than_ring_entries_all_complete() {
    let path = std::env::temp_dir().join(format!("forebay-rt-many-{}", std::process::id()));
    std::fs::write(&path, [7u8; 4096]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    Runtime::real().expect("io_uring").block_on(async move {
        let fd = io_uring::types::Fd(std::os::fd::AsRawFd::as_raw_fd(&file));
        // More than the queue holds, and not a multiple of the submission batch.
        let reads = (0..5003).map(|_| async move {
            let mut buf = vec![0u8; 16];
            let entry = io_uring::opcode::Read::new(fd, buf.as_mut_ptr(), 16).build();
            // SAFETY: the entry points into `buf`, which is kept.
            let (outcome, buf) = unsafe { uring::submit(entry, buf) }.await;
            assert_eq!(outcome.unwrap(), 16);
            assert_eq!(buf, [7u8; 16]);
        });
        assert_eq!(join_all(reads).await.len(), 5003);
        drop(file);
    });
    std::fs::remove_file(&path).unwrap();
}

// An entry names a file by its number. After the file was closed, the next file gets that number.
#[test]
fn dropped_operation_never_reaches_reused_descriptor() {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    let attempt = || async {
        let (reader, writer) = std::io::pipe().unwrap();
        let number = writer.as_raw_fd();
        let data = vec![7u8; 16];
        let write = io_uring::opcode::Write::new(io_uring::types::Fd(number), data.as_ptr(), 16);
        // SAFETY: the entry points into `data`, which is kept.
        drop(unsafe { uring::submit(write.build(), data) });
        drop((writer, reader));
        let (mut reader, writer) = std::io::pipe().unwrap();
        let same = writer.as_raw_fd() == number;
        sleep(Nanos::from_millis(20)).await;
        drop(writer);
        let mut heard = Vec::new();
        reader.read_to_end(&mut heard).unwrap();
        (same, heard.len())
    };
    Runtime::real().expect("io_uring").block_on(async move {
        for _ in 0..100 {
            let (same, heard) = attempt().await;
            assert_eq!(heard, 0, "bytes reached another file");
            if same {
                return;
            }
            // Another thread took the number first.
        }
        panic!("the number never came back");
    });
}

/// A waker whose references are counted.
struct Bell;

impl std::task::Wake for Bell {
    fn wake(self: std::sync::Arc<Self>) {}
}

// Tasks that wait for one of two conditions leave their wakers with both. The condition that is
// never notified must not collect them.
#[test]
fn unnotified_condition_keeps_few_wakers_per_task() {
    use std::sync::Arc;
    use std::task::{Context, Waker};
    let notify = sync::Notify::new();
    let bells = [Arc::new(Bell), Arc::new(Bell), Arc::new(Bell)];
    for _ in 0..10_000 {
        for bell in &bells {
            let waker = Waker::from(bell.clone());
            let mut waits = Box::pin(notify.notified());
            assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
    }
    let held: usize = bells.iter().map(Arc::strong_count).sum();
    assert!(held < 200, "{held} wakers of three tasks");
    notify.notify_all();
    let held: usize = bells.iter().map(Arc::strong_count).sum();
    assert_eq!(held, 3);
}

#[test]
fn only_boot_clock_advances_during_suspension() {
    Runtime::simulated(1).block_on(async {
        let start = now_with_suspension();
        sleep(Nanos::from_secs(2)).await;
        suspend(Nanos::from_secs(5));
        assert_eq!(now(), Nanos::from_secs(2));
        assert_eq!(now_with_suspension().since(start), Nanos::from_secs(7));
    });
    Runtime::real().unwrap().block_on(async {
        let (start, by_the_other) = (now_with_suspension(), now());
        sleep(Nanos::from_millis(10)).await;
        let gone = now().since(by_the_other);
        assert!(now_with_suspension().since(start) >= gone);
    });
}

#[test]
fn timeout_counts_no_time_in_which_the_thread_stood_still() {
    Runtime::simulated(1).block_on(async {
        let second = Nanos::from_secs(1);
        spawn(async move {
            sleep(second).await;
            stand_still(Nanos::from_secs(60));
        });
        let late = || sleep_until(Nanos::from_secs(66));
        assert_eq!(timeout_while_running(Nanos::from_secs(8), late()).await, Ok(()));
        assert_eq!(now(), Nanos::from_secs(66));
        let span = Nanos::from_secs(8);
        let outcome = timeout_while_running(span, std::future::pending::<()>()).await;
        assert_eq!((outcome, now()), (Err(Elapsed), Nanos::from_secs(74)));
    });
}

#[test]
fn background_work_runs_after_the_others_and_does_not_starve() {
    Runtime::real().expect("io_uring").block_on(async {
        const ROUNDS: usize = 100;
        let slices = Rc::new(Cell::new(0));
        let done = Rc::new(Cell::new(false));
        let (counted, ended) = (slices.clone(), done.clone());
        let background = spawn(async move {
            while !ended.get() {
                counted.set(counted.get() + 1);
                executor::yield_to_all().await;
            }
        });
        yield_now().await;
        let others = (0..16).map(|_| {
            spawn(async {
                for _ in 0..ROUNDS {
                    let begun = now();
                    while now().since(begun) < Nanos::from_micros(10) {}
                    yield_now().await;
                }
            })
        });
        let before = slices.get();
        join_all(others.collect::<Vec<_>>()).await;
        // A slice for 150 µs of the others: one for fifteen polls or fewer.
        let among = slices.get() - before;
        assert!((20..=16 * ROUNDS / 3).contains(&among), "{among} slices");
        // Alone, it runs on.
        sleep(Nanos::from_millis(5)).await;
        assert!(slices.get() > before + among + 100);
        done.set(true);
        background.await;
    });
}

#[test]
fn long_work_in_slices_lets_others_run() {
    both(|| {
        Box::pin(async {
            let turns = Rc::new(Cell::new(0));
            let counted = turns.clone();
            let other = spawn(async move {
                loop {
                    counted.set(counted.get() + 1);
                    yield_now().await;
                }
            });
            let mut slices = Slices::new();
            for _ in 0..6400 {
                // Some microseconds on a real clock, none under simulation.
                std::hint::black_box((0..2000u64).fold(0, |sum, n| sum ^ std::hint::black_box(n)));
                slices.step().await;
            }
            assert!(turns.get() >= 20, "{} turns", turns.get());
            drop(other);
        })
    });
}

#[test]
fn a_long_poll_is_found_by_the_place_of_its_task() {
    Runtime::real().expect("io_uring").block_on(async {
        assert!(!long_polls().iter().any(|polls| polls.longest >= Nanos::from_millis(50)));
        let line = line!() + 1;
        let task = spawn(async {
            let begun = now();
            while now().since(begun) < Nanos::from_millis(50) {}
            yield_now().await;
        });
        task.await;
        let longest = &long_polls()[0];
        assert!(longest.longest >= Nanos::from_millis(50) && longest.count >= 1, "{longest:?}");
        assert!(longest.place.ends_with(&format!("tests.rs:{line}")), "{longest:?}");
    });
}

/// Spawns tasks when it is dropped.
struct SpawnsAtEnd(Rc<Cell<u32>>);

impl Drop for SpawnsAtEnd {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
        for _ in 0..4 {
            spawn_detached(Box::pin(std::future::pending()));
        }
    }
}

#[test]
fn tasks_that_spawn_while_a_runtime_ends_are_dropped() {
    let dropped = Rc::new(Cell::new(0));
    let runtime = Runtime::simulated(1);
    let count = dropped.clone();
    runtime.block_on(async move {
        // Tasks that have ended leave places for others behind the last one that runs.
        let guard = SpawnsAtEnd(count);
        spawn_detached(Box::pin(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        }));
        let ended: Vec<_> = (0..8).map(|_| spawn(async {})).collect();
        join_all(ended).await;
    });
    assert_eq!(runtime.finish(), 0);
    assert_eq!(dropped.get(), 1);
}
