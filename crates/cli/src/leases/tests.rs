use forebay_device::MemoryDevice;
use forebay_rt::Runtime;

use super::*;

const ME: (&str, Class) = ("me", Class::Local);

fn memory() -> Option<Device> {
    Some(Rc::new(MemoryDevice::new("m", 1 << 20)))
}

#[test]
fn holders_share_one_lease_and_are_counted() {
    let leases = Leases::default();
    let (first, hold_1) = leases.take("tank/a", ME, memory).unwrap();
    let (second, hold_2) = leases.take("tank/a", ME, || panic!("the lease exists")).unwrap();
    assert!(Rc::ptr_eq(&first.lease, &second.lease));
    let (_other, _hold_3) = leases.take("tank/b", ME, memory).unwrap();
    let (_apart, _hold_4) = leases.take("tankette/a", ME, memory).unwrap();
    assert_eq!((leases.holders("tank/a"), leases.holders("tank")), (2, 3));
    let who = leases.who_holds("tank");
    assert_eq!((who["tank/a"].len(), who["tank/b"].len(), who.len()), (2, 1, 2));
    drop((hold_1, hold_2));
    assert_eq!((leases.holders("tank/a"), leases.holders("tank")), (0, 1));
    // Without holders it is opened anew: it may have been destroyed and created again.
    let (third, _hold_5) = leases.take("tank/a", ME, memory).unwrap();
    assert!(!Rc::ptr_eq(&first.lease, &third.lease));
    assert!(leases.take("tank/none", ME, || None).is_none());
}

#[test]
fn revoked_volume_fails_for_its_holders() {
    Runtime::simulated(1).block_on(async {
        let leases = Leases::default();
        let device: Device = memory().unwrap();
        let weak = Rc::downgrade(&device);
        let (lease, hold) = leases.take("tank/a", ME, || Some(device)).unwrap();
        let data = IoBuf::zeroed(4096).freeze();
        lease.write(0, data.clone(), true).await.unwrap();
        leases.revoke("tank");
        assert!(weak.upgrade().is_none(), "the volume is closed");
        let error = lease.write(0, data, true).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Gone);
        assert_eq!(lease.flush().await.unwrap_err().kind, ErrorKind::Gone);
        assert_eq!(lease.geometry().size_bytes, 1 << 20);
        drop(hold);
        assert_eq!(leases.holders("tank"), 0);
        let counted = leases.classes().figures();
        let what: Vec<_> =
            counted.iter().map(|(class, request, bytes, _)| (*class, *request, *bytes)).collect();
        assert_eq!(
            what,
            [(Class::Local, Request::DurableWrite, 4096)],
            "what failed is not counted"
        );
    });
}
