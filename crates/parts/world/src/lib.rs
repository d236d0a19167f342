//! Clock, dice and transport: the only room that touches the outside.
