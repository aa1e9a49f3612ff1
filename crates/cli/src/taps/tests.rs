use std::rc::Rc;

use forebay_device::{Device, IoBuf, MemoryDevice};
use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;

use super::{Command, Kind, MAX_KEPT, Taps};

async fn write(device: &Device, at: u64) {
    device.write(at, IoBuf::zeroed(512).freeze(), at == 512).await.unwrap();
}

fn run(work: impl AsyncFnOnce(Rc<Taps>, Device) + 'static) {
    Runtime::simulated(1).block_on(async move {
        let taps = Rc::<Taps>::default();
        let device = taps.tap("/d", Rc::new(MemoryDevice::new("d", 1 << 20)));
        work(taps, device).await;
    });
}

fn paths() -> Vec<String> {
    vec!["/d".to_owned(), "/gone".to_owned()]
}

#[test]
fn commands_between_two_polls_are_recorded_once() {
    run(async |taps, device| {
        write(&device, 0).await;
        assert_eq!(
            taps.poll("p", paths()).devices,
            [("/d".to_owned(), vec![])],
            "not recorded yet"
        );
        write(&device, 512).await;
        device.flush().await.unwrap();
        let recording = taps.poll("p", paths());
        let seen: Vec<(Kind, u64, u64, bool)> =
            recording.devices[0].1.iter().map(|c| (c.2, c.3, c.4, c.5)).collect();
        assert_eq!(seen, [(Kind::Write, 512, 512, true), (Kind::Flush, 0, 0, false)]);
        assert!(recording.devices[0].1.iter().all(|Command(from, to, ..)| from <= to));
        assert!(taps.poll("p", paths()).devices[0].1.is_empty());
        taps.end("p");
        write(&device, 0).await;
        assert!(taps.poll("p", paths()).devices[0].1.is_empty(), "the recording had ended");
    });
}

#[test]
fn full_record_drops_and_counts() {
    run(async |taps, device| {
        taps.poll("p", paths());
        for _ in 0..MAX_KEPT + 7 {
            write(&device, 0).await;
        }
        let recording = taps.poll("p", paths());
        assert_eq!((recording.devices[0].1.len(), recording.dropped), (MAX_KEPT, 7));
        assert_eq!(taps.poll("p", paths()).dropped, 0);
    });
}

#[test]
fn recording_without_polls_ends_by_itself() {
    run(async |taps, device| {
        taps.poll("p", paths());
        rt::sleep(Nanos::from_secs(9)).await;
        write(&device, 0).await;
        assert_eq!(taps.poll("p", paths()).devices[0].1.len(), 1, "nine seconds are not too long");
        rt::sleep(Nanos::from_secs(15)).await;
        write(&device, 0).await;
        assert!(taps.poll("p", paths()).devices[0].1.is_empty(), "the recording had ended");
    });
}

#[test]
fn a_second_recording_without_polls_ends_as_the_first_does() {
    run(async |taps, device| {
        for _ in 0..3 {
            taps.poll("p", paths());
            write(&device, 0).await;
            let recording = taps.poll("p", paths());
            assert_eq!(recording.devices[0].1.len(), 1);
            rt::sleep(Nanos::from_secs(24)).await;
            assert!(taps.polled.borrow().is_empty(), "it goes on");
        }
    });
}
