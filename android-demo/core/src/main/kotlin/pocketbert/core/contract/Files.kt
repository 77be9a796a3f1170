package pocketbert.core.contract

import java.io.ByteArrayOutputStream
import java.io.File
import java.io.IOException
import java.io.InputStream
import java.nio.file.FileVisitResult
import java.nio.file.LinkOption
import java.nio.file.Path
import java.nio.file.SimpleFileVisitor
import java.nio.file.attribute.BasicFileAttributes

/** Something shipped cannot be used; the message is a sentence for a screen. */
sealed class Unusable(message: String) : Exception(message)

/** A shipped file is missing, broken, or of another version. */
class UnreadableFile(val file: String, why: String) : Unusable("$file: $why")

/**
 * A file below a folder.
 *
 * @property path relative to the folder, with `/` between names.
 * @property bytes its size; null where only reading it tells.
 * @property regular false for links, pipes and devices.
 */
class FoundFile(val path: String, val bytes: Long?, val regular: Boolean)

/** Where shipped files lie: an app's assets, or a folder. */
interface Files {
    /**
     * Opens a file.
     *
     * @throws IOException there is no such file.
     */
    fun open(path: String): InputStream

    /**
     * Returns every file below a folder, at any depth.
     *
     * @throws IOException there is no such folder.
     */
    fun list(folder: String): List<FoundFile>

    /** Returns where the file system has a file, for a runtime that maps it; null where it lies within something else. */
    fun onDisk(path: String): File? = null
}

/** Files below a folder of the file system. */
class Folder(private val root: File) : Files {
    override fun onDisk(path: String) = File(root, path)

    override fun open(path: String): InputStream {
        val file = File(root, path).toPath()
        // A pipe would be waited for, and a device never ends; what a link leads to is not what was listed.
        if (!java.nio.file.Files.isRegularFile(file, LinkOption.NOFOLLOW_LINKS)) throw IOException("$file is no regular file")
        return java.nio.file.Files.newInputStream(file, LinkOption.NOFOLLOW_LINKS)
    }

    override fun list(folder: String): List<FoundFile> {
        val top = File(root, folder).toPath()
        val found = ArrayList<FoundFile>()
        java.nio.file.Files.walkFileTree(
            top,
            object : SimpleFileVisitor<Path>() {
                override fun visitFile(file: Path, attributes: BasicFileAttributes): FileVisitResult {
                    val regular = attributes.isRegularFile && java.nio.file.Files.isRegularFile(file, LinkOption.NOFOLLOW_LINKS)
                    found.add(FoundFile(top.relativize(file).joinToString("/"), attributes.size(), regular))
                    return FileVisitResult.CONTINUE
                }
            },
        )
        return found
    }
}

/** Reads a file that can have no more than [most] bytes. */
internal fun Files.read(path: String, most: Int = MOST_BYTES): ByteArray = try {
    open(path).use { stream -> stream.readAtMost(most) } ?: throw UnreadableFile(path, "it has more than $most bytes")
} catch (_: IOException) {
    throw UnreadableFile(path, "it is missing; ship the model again")
}

private fun InputStream.readAtMost(most: Int): ByteArray? {
    val read = ByteArrayOutputStream()
    val buffer = ByteArray(1 shl 16)
    while (true) {
        val count = read(buffer)
        if (count < 0) return read.toByteArray()
        if (read.size() + count > most) return null
        read.write(buffer, 0, count)
    }
}

private const val MOST_BYTES = 64 shl 20
