import Darwin
import Foundation

/// Calls of Darwin that Foundation has no words for.
enum System {
    /// Instructions that decide how fast int8 and fp16 run, as the pipeline names them, and the system's names for them.
    private static let instructions = [
        ("bf16", "hw.optional.arm.FEAT_BF16"),
        ("dotprod", "hw.optional.arm.FEAT_DotProd"),
        ("fp16", "hw.optional.arm.FEAT_FP16"),
        ("i8mm", "hw.optional.arm.FEAT_I8MM"),
        ("sme", "hw.optional.arm.FEAT_SME"),
    ]

    // The usual name for it is a variable of C's, which Swift 6 does not let one read.
    private static let task = task_self_trap()

    /// Such as `iPhone17,1`; in the simulator, the model that it plays.
    static var modelId: String {
        ProcessInfo.processInfo.environment["SIMULATOR_MODEL_IDENTIFIER"] ?? text("hw.machine") ?? "unknown"
    }

    static var abi: String {
        #if arch(arm64)
            "arm64"
        #else
            "x86_64"
        #endif
    }

    static var features: [String] { instructions.filter { flag($0.1) }.map(\.0) }

    /// Returns a value of the system that is a text.
    static func text(_ name: String) -> String? {
        var size = 0
        if sysctlbyname(name, nil, &size, nil, 0) != 0 || size == 0 { return nil }
        var bytes = [UInt8](repeating: 0, count: size)
        if sysctlbyname(name, &bytes, &size, nil, 0) != 0 { return nil }
        return String(decoding: bytes.prefix { $0 != 0 }, as: UTF8.self)
    }

    private static func flag(_ name: String) -> Bool {
        var value: Int32 = 0
        var size = MemoryLayout<Int32>.size
        return sysctlbyname(name, &value, &size, nil, 0) == 0 && value != 0
    }

    /// Returns what the process has in memory, as the system counts it when it looks for processes to end, and the most so far.
    static func footprint() -> (now: Int64, peak: Int64)? {
        var info = task_vm_info_data_t()
        var count = mach_msg_type_number_t(MemoryLayout<task_vm_info_data_t>.size / MemoryLayout<natural_t>.size)
        let result = withUnsafeMutablePointer(to: &info) { pointer in
            pointer.withMemoryRebound(to: integer_t.self, capacity: Int(count)) {
                task_info(task, task_flavor_t(TASK_VM_INFO), $0, &count)
            }
        }
        return result == KERN_SUCCESS ? (Int64(info.phys_footprint), Int64(info.ledger_phys_footprint_peak)) : nil
    }

    /// Returns when the process began, in seconds since 1970; nil where the system does not tell.
    static func startOfProcess() -> TimeInterval? {
        var name: [Int32] = [CTL_KERN, KERN_PROC, KERN_PROC_PID, getpid()]
        var info = kinfo_proc()
        var size = MemoryLayout<kinfo_proc>.size
        if sysctl(&name, UInt32(name.count), &info, &size, nil, 0) != 0 || size == 0 { return nil }
        let began = info.kp_proc.p_un.__p_starttime
        return TimeInterval(began.tv_sec) + TimeInterval(began.tv_usec) / 1e6
    }

    /// Returns the load of the last minute.
    static func loadAverage() -> Double? {
        var load = [0.0]
        return getloadavg(&load, 1) == 1 ? load[0] : nil
    }
}
