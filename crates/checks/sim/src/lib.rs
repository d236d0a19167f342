//! One seed, one world: the whole system under a simulated network, with a history checker.
