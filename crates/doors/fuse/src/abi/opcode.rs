//! Which requests there are. The names are the protocol's own.

macro_rules! opcodes {
    ($($number:literal $name:ident $label:literal;)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Opcode {
            $($name,)*
            /// Of a newer kernel, or one that is never answered here.
            Unknown(u32),
        }

        impl Opcode {
            pub fn from_number(number: u32) -> Self {
                match number {
                    $($number => Self::$name,)*
                    other => Self::Unknown(other),
                }
            }

            /// For logs and metrics.
            pub fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)*
                    Self::Unknown(_) => "unknown",
                }
            }
        }
    };
}

impl Opcode {
    /// Does the kernel wait for an answer to it, one by its number?
    pub fn has_answer(self) -> bool {
        !matches!(self, Self::Forget | Self::BatchForget | Self::Interrupt)
    }
}

opcodes! {
    1 Lookup "lookup";
    2 Forget "forget";
    3 Getattr "getattr";
    4 Setattr "setattr";
    5 Readlink "readlink";
    6 Symlink "symlink";
    8 Mknod "mknod";
    9 Mkdir "mkdir";
    10 Unlink "unlink";
    11 Rmdir "rmdir";
    12 Rename "rename";
    13 Link "link";
    14 Open "open";
    15 Read "read";
    16 Write "write";
    17 Statfs "statfs";
    18 Release "release";
    20 Fsync "fsync";
    21 Setxattr "setxattr";
    22 Getxattr "getxattr";
    23 Listxattr "listxattr";
    24 Removexattr "removexattr";
    25 Flush "flush";
    26 Init "init";
    27 Opendir "opendir";
    28 Readdir "readdir";
    29 Releasedir "releasedir";
    30 Fsyncdir "fsyncdir";
    31 Getlk "getlk";
    32 Setlk "setlk";
    33 Setlkw "setlkw";
    34 Access "access";
    35 Create "create";
    36 Interrupt "interrupt";
    37 Bmap "bmap";
    38 Destroy "destroy";
    39 Ioctl "ioctl";
    40 Poll "poll";
    42 BatchForget "batch_forget";
    43 Fallocate "fallocate";
    44 Readdirplus "readdirplus";
    45 Rename2 "rename2";
    46 Lseek "lseek";
    47 CopyFileRange "copy_file_range";
    50 Syncfs "syncfs";
    51 Tmpfile "tmpfile";
    52 Statx "statx";
    53 CopyFileRange64 "copy_file_range_64";
}
