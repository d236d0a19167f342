//! Memory of a process that lives long: used again while there is work, given back when there is
//! none.
//!
//! Bulk data comes in blocks of a megabyte or so. Left to itself the C library maps such blocks
//! from the kernel one by one, and each costs a page fault per 4 KiB, which is more than the copy
//! into it; or it keeps what was freed for ever. So large blocks come from the heap ([`prepare`]),
//! and when there was no work for a while the heap's free pages go back to the kernel
//! ([`give_back`]); so do they under work where much more is free than work needs.
//!
//! Elsewhere than with the GNU C library both do nothing.

use std::time::Duration;

/// How often is looked whether there is work: none for once to twice as long means idle.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Less than this between two looks is no work: 1 % of a core.
const IDLE_TICKS: u64 = 5;

/// How often memory is given back once there is no work: caches let go a little later.
const TRIMS: u32 = 3;

/// So much may be free while there is work.
const FREE_MAX: usize = 512 << 20;

/// To be called before threads are started.
pub fn prepare() {
    /// Blocks up to here come from the heap; the most that the library takes.
    const MAPPED_FROM: libc::c_int = 32 << 20;
    /// Threads share so many heaps: what one frees another uses.
    const HEAPS_MAX: libc::c_int = 2;
    #[cfg(target_env = "gnu")]
    for (setting, value) in [
        (libc::M_MMAP_THRESHOLD, MAPPED_FROM),
        (libc::M_TRIM_THRESHOLD, FREE_MAX as libc::c_int),
        (libc::M_ARENA_MAX, HEAPS_MAX),
    ] {
        // SAFETY: changes numbers inside the allocator, under its own lock.
        unsafe { libc::mallopt(setting, value) };
    }
}

/// Gives free pages back to the kernel whenever work has ended, and where it leaves too many of
/// them between what is in use. Never ends.
pub async fn give_back() {
    let (mut worked, mut trims_left, mut was_scattered) = (worked_ticks(), 0, false);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = worked_ticks();
        let is_idle = now.saturating_sub(worked) <= IDLE_TICKS;
        worked = now;
        if !is_idle {
            trims_left = TRIMS;
        }
        // What is needed again at once would only be fetched anew.
        let is_scattered = !is_idle && free_bytes() > FREE_MAX;
        let trims = if is_idle { trims_left > 0 } else { is_scattered && was_scattered };
        was_scattered = is_scattered && !trims;
        if trims {
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

/// What is in memory and not in use, and nobody else's.
fn free_bytes() -> usize {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator counts under its own locks.
    let in_use = unsafe { libc::mallinfo2() }.uordblks;
    #[cfg(not(target_env = "gnu"))]
    let in_use = usize::MAX;
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut fields = text.split_ascii_whitespace().skip(1).map_while(|field| field.parse().ok());
    let (resident, shared): (usize, usize) =
        (fields.next().unwrap_or(0), fields.next().unwrap_or(0));
    (resident.saturating_sub(shared) * rustix::param::page_size()).saturating_sub(in_use)
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
    fn what_is_freed_and_stays_is_counted() {
        const BLOCK: usize = 1 << 20;
        prepare();
        let blocks: Vec<Vec<u8>> = (0..64).map(|_| vec![1; BLOCK]).collect();
        let before = free_bytes();
        // The last one keeps the others where they are.
        let last = blocks.into_iter().next_back();
        assert!(free_bytes() > before + 32 * BLOCK);
        trim();
        assert!(free_bytes() < before + 32 * BLOCK);
        drop(last);
    }

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
