//! Commands on devices, and what becomes of space.

use forebay_device::ErrorKind;
use forebay_rt::Runtime;

use super::rack::Rack;
use super::{expect, names, spec, stamp, volume};
use crate::Pool;
use crate::spec::{ImportOptions, Redundancy, VolumeSpec};
use crate::status::Health;

const SIZE: u64 = 64 << 20;

#[test]
fn one_side_of_a_mirrored_log_is_detached_and_not_removed() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a", "l", "m"], SIZE);
        let spec = spec(Redundancy::Raid0, &["a"], &["l", "m"]);
        let pool = Pool::create(rack.host(1), "tank", &spec).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for side in ["l", "m"] {
            let said = pool.remove(side).await.unwrap_err().message;
            assert!(said.contains("'pool detach tank"), "{said}");
            assert!(said.contains("mirror-0"), "{said}");
        }
        assert_eq!(pool.status().logs[0].children.len(), 2, "nothing changed");
        pool.detach("l").await.unwrap();
        v.write(0, stamp(4096, 1), true).await.unwrap();
        let said = pool.detach("m").await.unwrap_err().message;
        assert!(said.contains("'pool remove'"), "{said}");
        pool.attach("m", "l", false).await.unwrap();
        v.write(0, stamp(4096, 2), true).await.unwrap();
        assert_eq!(pool.status().logs[0].children.len(), 2);
        pool.remove("mirror-0").await.unwrap();
        assert!(pool.status().logs.is_empty());
        v.write(0, stamp(4096, 3), true).await.unwrap();
        expect(&v, 0, &stamp(4096, 3)).await;
        // Both are free again.
        let add = super::spec(Redundancy::Raid0, &[], &["m"]);
        let add = crate::spec::PoolSpec { groups: vec![], ..add };
        pool.add(&add).await.unwrap();
        // A log that is no mirror is removed by its name.
        pool.remove("m").await.unwrap();
        assert_eq!(pool.summary().health, Health::Online);
        pool.export().await.unwrap();
    });
}

#[test]
fn sparse_volumes_fill_the_pool_to_its_last_block_and_no_further() {
    Runtime::simulated(2).block_on(async {
        let rack = Rack::new(&["a", "b", "c"], SIZE);
        let spec = spec(Redundancy::Raidz1, &["a", "b", "c"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &spec).await.unwrap();
        for name in ["v", "w"] {
            let sparse = VolumeSpec { name: name.into(), sparse: true, ..volume(1 << 30) };
            pool.create_volume(&sparse).await.unwrap();
        }
        let (v, w) = (pool.open_volume("v").unwrap(), pool.open_volume("w").unwrap());
        let room = pool.summary().free_bytes / 4096;
        assert!(room > 1000);
        let mut written = 0;
        let full = loop {
            let device = if written % 2 == 0 { &v } else { &w };
            match device.write(written / 2 * 4096, stamp(4096, written), written % 500 == 0).await {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
            assert!(written <= room, "more than there is");
        };
        assert_eq!(full.kind, ErrorKind::NoSpace, "{full}");
        assert_eq!(written, room, "every block that was said to be free could be had");
        pool.sync().await.unwrap();
        // Full is not broken: what is there is read, overwritten and trimmed, and nothing else.
        for at in (0..written).step_by(97) {
            let device = if at % 2 == 0 { &v } else { &w };
            expect(device, at / 2 * 4096, &stamp(4096, at)).await;
        }
        for round in 0..3 {
            for at in 0..written / 2 {
                v.write(at * 4096, stamp(4096, at + round), false).await.unwrap();
            }
            assert!(w.write(written * 4096, stamp(4096, 1), false).await.is_err());
        }
        w.discard(0, 40 * 4096, true).await.unwrap();
        pool.sync().await.unwrap();
        for at in 0..40 {
            v.write((room + at) * 4096, stamp(4096, at), true).await.unwrap();
        }
        let more = v.write((room + 40) * 4096, stamp(4096, 0), true).await.unwrap_err();
        assert_eq!(more.kind, ErrorKind::NoSpace);
        pool.export().await.unwrap();
        drop((v, w, pool));
        let options = ImportOptions::default();
        let paths = names(&["a", "b", "c"]);
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        let (v, w) = (pool.open_volume("v").unwrap(), pool.open_volume("w").unwrap());
        expect(&v, (room + 39) * 4096, &stamp(4096, 39)).await;
        expect(&w, 39 * 4096, &[0; 4096]).await;
        expect(&v, 4096, &stamp(4096, 3)).await;
        assert!(w.write(0, stamp(4096, 0), false).await.is_err(), "still full");
        pool.export().await.unwrap();
    });
}
