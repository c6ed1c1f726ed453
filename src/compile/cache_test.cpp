// Damage, hostile folders, removal under way, many processes: always an entry as it was put, or a miss.
#include "compile/cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>

#include <csignal>
#include <cstdlib>
#include <thread>
#include <vector>

namespace flashover::compile {
namespace {

const Hash128 kKey{1, 2}, kOther{3, 4};

class CacheTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string t = testing::TempDir() + "/flashover_cache_XXXXXX";
    ASSERT_NE(::mkdtemp(t.data()), nullptr);
    root_ = t;
    path_ = root_ + "/a/b";
  }
  void TearDown() override {
    ASSERT_EQ(std::system(("chmod -R u+rwx '" + root_ + "'; rm -rf '" + root_ + "'").c_str()), 0);
  }
  std::string entry(const Hash128& key = kKey) const { return path_ + "/plan-" + key.hex(); }
  static std::string slurp(const std::string& file) {
    std::string out;
    if (FILE* f = std::fopen(file.c_str(), "rb")) {
      char buffer[4096];
      for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, f)) > 0;) out.append(buffer, n);
      std::fclose(f);
    }
    return out;
  }
  static void spill(const std::string& file, const std::string& bytes) {
    FILE* f = std::fopen(file.c_str(), "wb");
    ASSERT_NE(f, nullptr);
    std::fwrite(bytes.data(), 1, bytes.size(), f);
    std::fclose(f);
    ::chmod(file.c_str(), 0600);
  }
  std::string root_, path_;
};

TEST_F(CacheTest, SaysWhatItHoldsAndClearsThatAlone) {
  Cache c(path_);
  c.put("plan", kKey, "a");
  c.put("plan", kOther, "b");
  c.put("binary", kKey, "c");
  c.write_text("sizes.txt", "text");
  spill(path_ + "/notes-of-mine", "not an entry");
  std::map<std::string, Cache::Usage> held = c.contents();
  EXPECT_EQ(held["plan"].entries, 2u);
  EXPECT_EQ(held["binary"].entries, 1u);
  EXPECT_GT(held["binary"].bytes, 0u);
  EXPECT_EQ(c.clear({"sizes.txt", "no such file"}), 4u);
  EXPECT_FALSE(c.get("plan", kKey));
  EXPECT_EQ(slurp(path_ + "/notes-of-mine"), "not an entry");
  c.put("plan", kKey, "again");
  EXPECT_EQ(c.get("plan", kKey), "again");
}

TEST_F(CacheTest, KeepsWhatWasPut) {
  Cache c(path_);
  EXPECT_FALSE(c.get("plan", kKey));
  const std::string bytes("a\0b\xff", 4);
  c.put("plan", kKey, bytes);
  EXPECT_EQ(c.get("plan", kKey), bytes);
  EXPECT_FALSE(c.get("plan", kOther));
  EXPECT_FALSE(c.get("binary", kKey));
  c.put("plan", kKey, "");
  EXPECT_EQ(c.get("plan", kKey), "");
  EXPECT_EQ(Cache(path_).get("plan", kKey), "");
  struct stat s;
  ASSERT_EQ(::stat(path_.c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0700u);
  ASSERT_EQ(::stat(entry().c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0600u);
  EXPECT_EQ(c.take_warning(), "");
}

TEST_F(CacheTest, NoDirectoryNoCache) {
  Cache c("");
  c.put("plan", kKey, "x");
  EXPECT_FALSE(c.get("plan", kKey));
  EXPECT_EQ(c.take_warning(), "");
}

TEST_F(CacheTest, EveryDamageIsAMiss) {
  Cache c(path_);
  c.put("plan", kKey, "some bytes that matter");
  const std::string good = slurp(entry());
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] ^= 1;
    spill(entry(), bad);
    EXPECT_FALSE(c.get("plan", kKey)) << i;
    EXPECT_NE(::access(entry().c_str(), F_OK), 0) << "a damaged entry goes away";
  }
  for (size_t n = 0; n < good.size(); ++n) {
    spill(entry(), good.substr(0, n));
    EXPECT_FALSE(c.get("plan", kKey)) << n;
  }
  spill(entry(), good + "x");
  EXPECT_FALSE(c.get("plan", kKey));
  spill(entry(kOther), good);  // a whole entry under another's name
  EXPECT_FALSE(c.get("plan", kOther));
  spill(path_ + "/binary-" + kKey.hex(), good);
  EXPECT_FALSE(c.get("binary", kKey));
  spill(entry(), good);
  EXPECT_TRUE(c.get("plan", kKey));
  EXPECT_EQ(c.take_warning(), "");
}

TEST_F(CacheTest, OnlyPlainFilesOfOurs) {
  Cache c(path_);
  c.put("plan", kKey, "x");
  const std::string other = root_ + "/elsewhere";
  ASSERT_EQ(::rename(entry().c_str(), other.c_str()), 0);
  ASSERT_EQ(::symlink(other.c_str(), entry().c_str()), 0);
  EXPECT_FALSE(c.get("plan", kKey)) << "a link";
  ::unlink(entry().c_str());
  ASSERT_EQ(::link(other.c_str(), entry().c_str()), 0);
  EXPECT_FALSE(c.get("plan", kKey)) << "a second name of somebody's file";
  ::unlink(entry().c_str());
  ASSERT_EQ(::mkfifo(entry().c_str(), 0600), 0);
  EXPECT_FALSE(c.get("plan", kKey)) << "a pipe, and no waiting for it";
  ::unlink(entry().c_str());
  ASSERT_EQ(::mkdir(entry().c_str(), 0700), 0);
  EXPECT_FALSE(c.get("plan", kKey)) << "a directory";
  ::rmdir(entry().c_str());
  spill(entry(), slurp(other));
  ::chmod(entry().c_str(), 0666);
  EXPECT_FALSE(c.get("plan", kKey)) << "a file that everybody can write";
  // Putting replaces a link, and does not write through it.
  ::unlink(entry().c_str());
  spill(other, "precious");
  ASSERT_EQ(::symlink(other.c_str(), entry().c_str()), 0);
  c.put("plan", kKey, "new");
  EXPECT_EQ(slurp(other), "precious");
  EXPECT_EQ(c.get("plan", kKey), "new");
}

TEST_F(CacheTest, HostileDirectoriesAreRefused) {
  const auto refused = [](const std::string& path, const char* why) {
    Cache c(path);
    c.put("plan", kKey, "x");
    EXPECT_FALSE(c.get("plan", kKey)) << path;
    const std::string warning = c.take_warning();
    EXPECT_NE(warning.find(why), std::string::npos) << path << ": " << warning;
    c.put("plan", kKey, "x");
    EXPECT_EQ(c.take_warning(), "") << "warned once";
  };
  ASSERT_EQ(::mkdir((root_ + "/open").c_str(), 0700), 0);
  ::chmod((root_ + "/open").c_str(), 0777);
  refused(root_ + "/open", "written by others");
  refused(root_ + "/open/below", "everybody can write");
  spill(root_ + "/file", "x");
  refused(root_ + "/file", "Not a directory");
  refused(root_ + "/file/below", "Not a directory");
  refused("relative/path", "not an absolute path");
  ASSERT_EQ(::symlink("/nonexistent/flashover", (root_ + "/dangling").c_str()), 0);
  refused(root_ + "/dangling", "link to nowhere");
  ASSERT_EQ(::symlink("loop", (root_ + "/loop").c_str()), 0);
  refused(root_ + "/loop", "symbolic links");
  refused(root_ + "/missing/../x", "..");
  refused("/proc/flashover", "");
  refused(root_ + "/" + std::string(300, 'n'), "too long");
  if (::geteuid() == 0) {
    ASSERT_EQ(::mkdir((root_ + "/theirs").c_str(), 0755), 0);
    ASSERT_EQ(::chown((root_ + "/theirs").c_str(), 12345, 12345), 0);
    refused(root_ + "/theirs", "another user");
    refused(root_ + "/theirs/below", "another user");
    ASSERT_EQ(::symlink((root_ + "/fine").c_str(), (root_ + "/trap").c_str()), 0);
    ASSERT_EQ(::lchown((root_ + "/trap").c_str(), 12345, 12345), 0);
    refused(root_ + "/trap", "belongs to another user");
  }
}

TEST_F(CacheTest, OurOwnLinksAreFollowed) {
  ASSERT_EQ(::mkdir((root_ + "/real").c_str(), 0700), 0);
  ASSERT_EQ(::symlink((root_ + "/real").c_str(), (root_ + "/short").c_str()), 0);
  Cache c(root_ + "/short/cache");
  c.put("plan", kKey, "x");
  EXPECT_EQ(c.get("plan", kKey), "x");
  EXPECT_EQ(c.take_warning(), "");
}

TEST_F(CacheTest, ComesBackAfterRemoval) {
  Cache c(path_);
  c.put("plan", kKey, "x");
  ASSERT_EQ(std::system(("rm -rf '" + path_ + "'").c_str()), 0);
  EXPECT_FALSE(c.get("plan", kKey));
  c.put("plan", kKey, "y");
  EXPECT_EQ(c.get("plan", kKey), "y");
  EXPECT_EQ(c.take_warning(), "");
}

TEST_F(CacheTest, OldestUseGoesFirst) {
  Cache c(path_, 400 << 10, 20000);
  for (uint64_t i = 0; i < 80; ++i) {
    c.put("plan", {i, 0}, std::string(8000, 'x'));
    utimbuf old{static_cast<time_t>(1000000 + i * 10), static_cast<time_t>(1000000 + i * 10)};
    ::utime(entry({i, 0}).c_str(), &old);
    if (i > 3) {
      EXPECT_TRUE(c.get("plan", {3, 0})) << "used all the time, at " << i;
    }
  }
  c.evict();
  EXPECT_FALSE(c.get("plan", {0, 0}));
  EXPECT_TRUE(c.get("plan", {79, 0}));
  EXPECT_TRUE(c.get("plan", {3, 0}));
  spill(path_ + "/unrelated", "stays");
  Cache few(path_, size_t{1} << 30, 10);
  few.evict();
  EXPECT_EQ(slurp(path_ + "/unrelated"), "stays");
  size_t left = 0;
  for (uint64_t i = 0; i < 80; ++i) left += c.get("plan", {i, 0}).has_value();
  EXPECT_LE(left, 10u);
  EXPECT_GE(left, 7u);
}

TEST_F(CacheTest, LeftoversOfDeadWritersGo) {
  Cache c(path_);
  c.put("plan", kKey, "x");
  spill(path_ + "/.tmp-1-0-plan", "half");
  spill(path_ + "/.tmp-2-0-plan", "half");
  utimbuf old{1000000, 1000000};
  ::utime((path_ + "/.tmp-1-0-plan").c_str(), &old);
  c.evict();
  EXPECT_NE(::access((path_ + "/.tmp-1-0-plan").c_str(), F_OK), 0);
  EXPECT_EQ(::access((path_ + "/.tmp-2-0-plan").c_str(), F_OK), 0);
  EXPECT_EQ(c.get("plan", kKey), "x");
}

TEST_F(CacheTest, AFullDiskIsOneWarning) {
  // A file size limit fails like a full disk, at the write.
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    Cache c(path_);
    c.put("plan", kKey, std::string(100000, 'x'));
    const bool warned = c.take_warning().find("cannot be written") != std::string::npos;
    c.put("plan", kOther, std::string(100000, 'x'));
    std::_Exit(warned && !c.get("plan", kKey) && c.take_warning().empty() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(std::system(("test -z \"$(ls -A '" + path_ + "' | grep -v .lock)\"").c_str()), 0) << "no half entry stays";
}

TEST_F(CacheTest, ProcessesAndThreadsAgree) {
  const auto value = [](uint64_t k) { return std::string(3000 + k * 500, static_cast<char>('a' + k)); };
  std::vector<pid_t> children;
  for (int p = 0; p < 6; ++p) {
    const pid_t child = ::fork();
    if (child == 0) {
      Cache c(path_, 40 << 10, 10);  // small: evicts all the time
      for (uint64_t i = 0; i < 300; ++i) {
        const uint64_t k = (i * 7 + static_cast<uint64_t>(p)) % 20;
        if (i % 3 == 0) c.put("plan", {k, 9}, value(k));
        if (auto got = c.get("plan", {k, 9}); got && *got != value(k)) std::_Exit(1);
        if (p == 5 && i == 100) ::kill(::getpid(), SIGKILL);
      }
      std::_Exit(c.take_warning().empty() ? 0 : 2);
    }
    children.push_back(child);
  }
  Cache c(path_);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < 300; ++i) {
        if (i % 5 == 0) c.put("plan", {i % 20, 9}, value(i % 20));
        if (auto got = c.get("plan", {i % 20, 9}); got && *got != value(i % 20)) ++wrong;
      }
    });
  for (auto& t : threads) t.join();
  for (size_t i = 0; i < children.size(); ++i) {
    int status = 0;
    ::waitpid(children[i], &status, 0);
    if (i + 1 < children.size()) {
      EXPECT_EQ(status, 0) << i;
    } else {
      EXPECT_TRUE(WIFSIGNALED(status));
    }
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace flashover::compile
