//! Memory of a process that lives long: used again while there is work, given back when there is
//! none.
//!
//! Bulk data comes in blocks of a megabyte or so. Left to itself the C library maps such blocks
//! from the kernel one by one, and each costs a page fault per 4 KiB, which is more than the copy
//! into it; or it keeps what was freed for ever. So large blocks come from the heap ([`prepare`]),
//! and when there was no work for a while the heap's free pages go back to the kernel
//! ([`give_back`]).
//!
//! Elsewhere than with the GNU C library both do nothing.

use std::time::Duration;

/// How often is looked whether there is work: none for once to twice as long means idle.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Less than this between two looks is no work: 1 % of a core.
const IDLE_TICKS: u64 = 5;

/// How often memory is given back once there is no work: caches let go a little later.
const TRIMS: u32 = 3;

/// To be called before threads are started.
pub fn prepare() {
    /// Blocks up to here come from the heap; the most that the library takes.
    const MAPPED_FROM: libc::c_int = 32 << 20;
    /// So much may be free at the heap's end while there is work.
    const FREE_MAX: libc::c_int = 512 << 20;
    /// Threads share so many heaps: what one frees another uses.
    const HEAPS_MAX: libc::c_int = 2;
    #[cfg(target_env = "gnu")]
    for (setting, value) in [
        (libc::M_MMAP_THRESHOLD, MAPPED_FROM),
        (libc::M_TRIM_THRESHOLD, FREE_MAX),
        (libc::M_ARENA_MAX, HEAPS_MAX),
    ] {
        // SAFETY: changes numbers inside the allocator, under its own lock.
        unsafe { libc::mallopt(setting, value) };
    }
}

/// Gives free pages back to the kernel whenever work has ended. Never ends.
pub async fn give_back() {
    let (mut worked, mut trims_left) = (worked_ticks(), 0);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = worked_ticks();
        let is_idle = now.saturating_sub(worked) <= IDLE_TICKS;
        worked = now;
        if !is_idle {
            trims_left = TRIMS;
        } else if trims_left > 0 {
            trims_left -= 1;
            // It walks all free blocks: a few milliseconds, on a thread that nobody waits for.
            if tokio::task::spawn_blocking(trim).await.is_err() {
                return;
            }
        }
    }
}

/// Time that this process was on a processor, in the kernel's ticks of 10 ms.
fn worked_ticks() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields = after_name.split_ascii_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum()
}

fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator takes its own locks, and touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_noticed() {
        let before = worked_ticks();
        let mut sum = 0u64;
        while worked_ticks() <= before {
            sum = (0..1_000_000u64).fold(sum, u64::wrapping_add);
        }
        assert!(sum > 0);
    }
}
