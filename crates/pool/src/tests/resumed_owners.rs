//! A pool that goes on beside another machine that was about to take it, and what is read of one
//! that has gone on.

use forebay_device::Device;
use forebay_format::checksum::crc64;
use forebay_format::label::Heartbeat;
use forebay_multihost::write_heartbeat;
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::Rack;
use super::{expect, names, spec, stamp, volume};
use crate::import::divergence::begin;
use crate::labels::{read_label, write_config, write_root};
use crate::status::Health;
use crate::{Pool, ResumeError};

const DEVICES: &[&str] = &["a", "b", "l"];
const THEIRS: u64 = 77;

/// Another owner goes on from the newest root of a device.
async fn goes_on(device: &Device) {
    let label = read_label(device).await;
    let (envelope, mut config) = label.configs[0].clone();
    let mut root = label.roots[0].clone();
    config.generation += 1;
    begin(&mut config, THEIRS, root.commit);
    root.commit = root.commit.next();
    (root.nonce, root.host) = (THEIRS, 2);
    (root.config_generation, root.config_sum) = (config.generation, crc64(&config.encode()));
    write_config(device, envelope.device, &config).await.unwrap();
    write_root(device, &root).await.unwrap();
}

// The import of the other machine was paused when this one watched it, and goes on until it reads
// this one's claim.
#[test]
fn a_pool_does_not_go_on_from_a_root_that_another_owner_wrote_during_its_claim() {
    for is_written in [false, true] {
        Runtime::simulated(1).block_on(async move {
            let rack = Rack::new(DEVICES, 64 << 20);
            let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
            let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
            pool.create_volume(&volume(16 << 20)).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            v.write(0, stamp(4096, 1), false).await.unwrap();
            rack.switches.works_for.set(Some(0));
            pool.sync().await.unwrap_err();
            rack.switches.works_for.set(None);
            assert_eq!(pool.summary().health, Health::Suspended);
            // The heartbeat of this one has ended.
            rt::sleep(Nanos::from_secs(5)).await;
            let claim = Heartbeat { pool: pool.guid, nonce: THEIRS, host: 2, beat: 0 };
            for name in DEVICES {
                write_heartbeat(&rack.device(name), &claim).await.unwrap();
            }
            let resumed = rt::spawn({
                let pool = pool.clone();
                async move { pool.resume(&names(DEVICES)).await }
            });
            // It has watched for four seconds, and waits as long again after its claim.
            rt::sleep(Nanos::from_secs(5)).await;
            if is_written {
                for name in ["a", "b"] {
                    goes_on(&rack.device(name)).await;
                }
            }
            let outcome = resumed.await;
            if !is_written {
                outcome.unwrap().export().await.unwrap();
                return;
            }
            let ResumeError::Import(error) = outcome.err().expect("refused") else { panic!() };
            assert_kind!(error.kind, OwnedMeanwhile);
            assert!(pool.is_resumable());
            for name in ["a", "b"] {
                let label = read_label(&rack.device(name)).await;
                assert_eq!(label.roots[0].nonce, THEIRS, "nothing was written over it");
            }
            drop(v);
        });
    }
}

// What the suspended pool had in memory is not what the volume has now.
#[test]
fn a_volume_that_was_open_reads_what_others_have_written_since() {
    Runtime::simulated(2).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let mut options = spec(Layout::Mirror, &["a", "b"], &["l"]);
        options.properties.insert("failmode".to_owned(), "wait".to_owned());
        let pool = Pool::create(rack.locked(), "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let old = pool.open_volume("v").unwrap();
        old.write(0, stamp(8192, 1), false).await.unwrap();
        rack.switches.works_for.set(Some(0));
        pool.sync().await.unwrap_err();
        expect(&old, 0, &stamp(8192, 1)).await;
        rack.switches.works_for.set(None);
        let next = pool.resume(&names(DEVICES)).await.unwrap();
        let new = next.open_volume("v").unwrap();
        new.write(4096, stamp(4096, 2), false).await.unwrap();
        expect(&old, 4096, &stamp(4096, 2)).await;
        expect(&old, 0, &stamp(8192, 1)[..4096]).await;
        drop((old, new, pool));
        next.export().await.unwrap();
    });
}
