// Declared after the headers of Apple's SDK; see README.md.
import Foundation

public typealias natural_t = UInt32
public typealias integer_t = Int32
public typealias kern_return_t = Int32
public typealias mach_port_t = UInt32
public typealias mach_msg_type_number_t = natural_t
public typealias task_flavor_t = natural_t
public typealias task_info_t = UnsafeMutablePointer<integer_t>

public let KERN_SUCCESS: Int32 = 0
public let TASK_VM_INFO: Int32 = 22
public let CTL_KERN: Int32 = 1
public let KERN_PROC: Int32 = 14
public let KERN_PROC_PID: Int32 = 1

public func task_self_trap() -> mach_port_t { fatalError() }

public struct task_vm_info_data_t {
    public var phys_footprint: UInt64
    public var ledger_phys_footprint_peak: Int64
    public init() { fatalError() }
}

// The names of the header.
// swift-format-ignore: NoLeadingUnderscores
public struct extern_proc {
    public struct __Unnamed_union_p_un {
        public var __p_starttime: timeval
    }
    public var p_un: __Unnamed_union_p_un
}

public struct kinfo_proc {
    public var kp_proc: extern_proc
    public init() { fatalError() }
}

public func task_info(
    _ target_task: mach_port_t, _ flavor: task_flavor_t, _ task_info_out: task_info_t!,
    _ task_info_outCnt: UnsafeMutablePointer<mach_msg_type_number_t>!
) -> kern_return_t { fatalError() }

public func sysctlbyname(
    _ name: UnsafePointer<CChar>!, _ oldp: UnsafeMutableRawPointer!, _ oldlenp: UnsafeMutablePointer<Int>!,
    _ newp: UnsafeMutableRawPointer!, _ newlen: Int
) -> Int32 { fatalError() }

public func sysctl(
    _ name: UnsafeMutablePointer<Int32>!, _ namelen: UInt32, _ oldp: UnsafeMutableRawPointer!,
    _ oldlenp: UnsafeMutablePointer<Int>!, _ newp: UnsafeMutableRawPointer!, _ newlen: Int
) -> Int32 { fatalError() }
