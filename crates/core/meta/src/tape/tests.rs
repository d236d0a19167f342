//! Which pool's HSM has a file.

use super::*;
use crate::fixture::map;
use tieline_types::{Layout, OstIndex, Time};

#[test]
fn the_pool_of_the_layout_comes_before_one_that_has_the_osts() {
    let map = map();
    let mut inode = Inode::root(Time::default());
    let name = |inode: &Inode| pool_of(&map, inode).map(|pool| pool.name.to_string());
    assert_eq!(name(&inode), None, "nothing says where it is");
    inode.stripe = vec![OstIndex(1)];
    assert_eq!(name(&inode).as_deref(), Some("uf"));
    inode.stripe = vec![OstIndex(1), OstIndex(2)];
    assert_eq!(name(&inode), None, "some of it lies elsewhere");
    let pool = |name: &str| Layout { pool: Some(name.parse().unwrap()), ..Layout::default() };
    inode.layout = Some(pool("uf"));
    assert_eq!(name(&inode).as_deref(), Some("uf"));
    inode.layout = Some(pool("empty"));
    assert_eq!(name(&inode), None, "that pool has no HSM");
}
