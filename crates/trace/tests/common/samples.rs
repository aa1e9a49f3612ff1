//! A small trace of each format.

use forebay_trace::Format;

/// blktrace: a thread's name, then queue, issue and completion of a write, and of a flush.
fn blktrace() -> Vec<u8> {
    let mut out = Vec::new();
    let mut record = |at: u64, sector: u64, bytes: u32, action: u32, payload: &[u8]| {
        out.extend(0x6561_7407u32.to_le_bytes());
        out.extend(1u32.to_le_bytes());
        out.extend(at.to_le_bytes());
        out.extend(sector.to_le_bytes());
        out.extend(bytes.to_le_bytes());
        out.extend(action.to_le_bytes());
        out.extend(457u32.to_le_bytes());
        out.extend((8u32 << 20 | 16).to_le_bytes());
        out.extend(0u32.to_le_bytes());
        out.extend(0u16.to_le_bytes());
        out.extend((payload.len() as u16).to_le_bytes());
        out.extend(payload);
    };
    record(1000, 0, 0, 1 << 26, b"fio\0");
    record(1000, 2048, 4096, 0x0012_0001, b"");
    record(2000, 2048, 4096, 0x0042_0007, b"");
    record(5000, 2048, 4096, 0x0082_0008, b"");
    record(6000, 0, 0, 0x0045_0007, b"");
    record(7000, 0, 0, 0x0085_0008, b"");
    out
}

/// dm-log-writes with sectors of 512 bytes: a write with data, a mark, a flush, a discard.
fn log_writes() -> Vec<u8> {
    let mut out = Vec::new();
    let mut sector = |parts: &[&[u8]]| {
        let begin = out.len();
        parts.iter().for_each(|part| out.extend_from_slice(part));
        out.resize(begin + 512, 0);
    };
    let words = |words: [u64; 4]| words.map(u64::to_le_bytes).concat();
    sector(&[&words([0x006a_7366_7773_6872, 1, 4, 512])]);
    sector(&[&words([64, 2, 2, 0])]);
    sector(&[b"data"]);
    sector(&[b"more"]);
    sector(&[&words([0, 0, 8, 4]), b"mark"]);
    sector(&[&words([0, 0, 1, 0])]);
    sector(&[&words([128, 8, 4, 0])]);
    out
}

fn vscsi() -> Vec<u8> {
    let mut out = Vec::new();
    for (at, (command, lbn)) in [(0x28u16, 100u64), (0x2a, 108), (0x2a, 64)].into_iter().enumerate()
    {
        out.extend((at as u32).to_le_bytes());
        out.extend(4096u32.to_le_bytes());
        out.extend(1u32.to_le_bytes());
        out.extend(command.to_le_bytes());
        out.extend(0x0100u16.to_le_bytes());
        out.extend(lbn.to_le_bytes());
        out.extend((at as u64 * 250).to_le_bytes());
    }
    out
}

/// A whole trace of `format`; the own format is made by converting another.
pub fn sample(format: Format) -> Vec<u8> {
    let text = match format {
        Format::Forebay => return forebay(),
        Format::Blktrace => return blktrace(),
        Format::LogWrites => return log_writes(),
        Format::Vscsi => return vscsi(),
        Format::Blkparse => {
            "  8,16   0        1     0.000001000   457  Q  WS 2048 + 8 [fio]\n  \
             8,16   0        2     0.000001500   457  G  WS 2048 + 8 [fio]\n  \
             8,16   0        3     0.000002000   457  D  WS 2048 + 8 [fio]\n  \
             8,16   0        4     0.000005000     0  C  WS 2048 + 8 [0]\n  \
             8,16   0        5     0.000006000   458  D  FN [kworker/0:1H]\n  \
             8,16   0        6     0.000007000     0  C  FN 0 [0]\n\
             CPU0 (8,16):\n Reads Queued:           0,        0KiB\n"
        }
        Format::Fio2 => {
            "fio version 2 iolog\n/dev/sdb add\n/dev/sdb open\n/dev/sdb write 0 4096\n\
             /dev/sdb wait 500\n/dev/sdb read 8192 512\n/dev/sdb datasync\n/dev/sdb close\n"
        }
        Format::Fio3 => {
            "fio version 3 iolog\n0 /dev/sdb add\n0 /dev/sdb open\n\
             10 /dev/sdb write 0 4096\n20 /dev/sdb read 8192 512\n\
             30 /dev/sdb trim 0 65536\n31 /dev/sdb sync 0 0\n40 /dev/sdb close\n"
        }
        Format::Msr => {
            "128166372003061629,hm,0,Read,383496192,32768,413\n\
             128166372016382155,hm,0,Write,2822144,4096,3\n\
             128166372026382245,hm,1,Write,0,4096,7\n"
        }
        Format::Alibaba => {
            "419,W,8792731648,16384,1577808000000007\n725,R,4096,512,1577808000000039\n"
        }
        Format::Tencent => "1538323200,12910952,128,0,1063\n1538323201,1,8,1,1064\n",
        Format::Systor => {
            "Timestamp,Response,IOType,LUN,Offset,Size\n\
             1455592822.182246000,0.000064000,R,2,80123904,4096\n\
             1455592822.182300000,6e-05,W,2,0,512\n1455592823.5,,W,3,512,512\n"
        }
        Format::Blkreplay => {
            "This file is under a license.\n2 sentences of it begin with a number.\n\
             start ; sector; length ; op ;  replay_delay=0 ; replay_duration=0\n      \
             0.000000000 ;     100 ;    8 ; W ; 0.0 ; 0.0\n\
             start ; sector; length ; op ;  replay_delay=0 ; replay_duration=0\n      \
             1.500000001 ;     108 ;    8 ; R ; 0.0 ; 0.0\n"
        }
        Format::Disksim => "938513000 4 264719034 16 0\n938828000 3 197570570 16 1\n",
        Format::OpenCas => {
            "time_ns,device,op,start_sector,sectors,flags\n0,0,W,1652296,256,F\n\
             35081,0,D,1652552,256,\n35082,1,F,0,0,P\n"
        }
        Format::Biosnoop => {
            "TIME(s)     COMM           PID    DISK    T SECTOR     BYTES   LAT(ms)\n\
             0.000004    kworker/u4 a b 1950   xvda1   W 13092560   4096       0.74\n\
             0.000178    jbd2           1951   xvda1   FF 18446744073709551615 0    0.61\n\
             0.001469    jbd2           1951   xvda1   R 13092440   512        1.24\n"
        }
    };
    text.as_bytes().to_vec()
}

fn forebay() -> Vec<u8> {
    let source = super::source(sample(Format::Blkparse), None).expect("a trace");
    super::compact(source)
}
